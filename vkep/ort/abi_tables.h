/* The two function tables of ONNX Runtime that vkep calls, with gaps for what it does not use. */

struct OrtApi {
  OrtStatus *(*CreateStatus)(int code, const char *message);  /* 0 */
  int (*GetErrorCode)(const OrtStatus *status);  /* 1 */
  const char *(*GetErrorMessage)(const OrtStatus *status);  /* 2 */
  OrtStatus *(*CreateEnv)(int level, const char *name, OrtEnv **out);  /* 3 */
  void *unused_4[4];
  OrtStatus *(*CreateSessionFromArray)(const OrtEnv *env, const void *model, size_t bytes,
      const OrtSessionOptions *options, OrtSession **out);  /* 8 */
  OrtStatus *(*Run)(OrtSession *session, const OrtRunOptions *options, const char *const *input_names,
      const OrtValue *const *inputs, size_t input_count, const char *const *output_names, size_t output_count,
      OrtValue **outputs);  /* 9 */
  OrtStatus *(*CreateSessionOptions)(OrtSessionOptions **out);  /* 10 */
  OrtStatus *(*SetOptimizedModelFilePath)(OrtSessionOptions *options, const char *path);  /* 11 */
  OrtStatus *(*CloneSessionOptions)(const OrtSessionOptions *options, OrtSessionOptions **out);  /* 12 */
  void *unused_13[2];
  OrtStatus *(*DisableProfiling)(OrtSessionOptions *options);  /* 15 */
  void *unused_16[7];
  OrtStatus *(*SetSessionGraphOptimizationLevel)(OrtSessionOptions *options, int level);  /* 23 */
  void *unused_24[2];
  OrtStatus *(*CreateCustomOpDomain)(const char *domain, OrtCustomOpDomain **out);  /* 26 */
  OrtStatus *(*CustomOpDomain_Add)(OrtCustomOpDomain *domain, const OrtCustomOp *op);  /* 27 */
  OrtStatus *(*AddCustomOpDomain)(OrtSessionOptions *options, OrtCustomOpDomain *domain);  /* 28 */
  void *unused_29[20];
  OrtStatus *(*CreateTensorWithDataAsOrtValue)(const OrtMemoryInfo *info, void *data, size_t bytes,
      const int64_t *shape, size_t rank, int type, OrtValue **out);  /* 49 */
  void *unused_50[1];
  OrtStatus *(*GetTensorMutableData)(OrtValue *value, void **out);  /* 51 */
  void *unused_52[3];
  OrtStatus *(*CastTypeInfoToTensorInfo)(const OrtTypeInfo *type, const OrtTensorTypeAndShapeInfo **out);  /* 55 */
  void *unused_56[1];
  OrtStatus *(*CreateTensorTypeAndShapeInfo)(OrtTensorTypeAndShapeInfo **out);  /* 57 */
  OrtStatus *(*SetTensorElementType)(OrtTensorTypeAndShapeInfo *info, int type);  /* 58 */
  OrtStatus *(*SetDimensions)(OrtTensorTypeAndShapeInfo *info, const int64_t *dims, size_t rank);  /* 59 */
  OrtStatus *(*GetTensorElementType)(const OrtTensorTypeAndShapeInfo *info, int *out);  /* 60 */
  OrtStatus *(*GetDimensionsCount)(const OrtTensorTypeAndShapeInfo *info, size_t *out);  /* 61 */
  OrtStatus *(*GetDimensions)(const OrtTensorTypeAndShapeInfo *info, int64_t *dims, size_t rank);  /* 62 */
  OrtStatus *(*GetSymbolicDimensions)(const OrtTensorTypeAndShapeInfo *info, const char **names,
      size_t rank);  /* 63 */
  void *unused_64[7];
  OrtStatus *(*MemoryInfoGetName)(const OrtMemoryInfo *info, const char **out);  /* 71 */
  OrtStatus *(*MemoryInfoGetId)(const OrtMemoryInfo *info, int *out);  /* 72 */
  void *unused_73[1];
  OrtStatus *(*MemoryInfoGetType)(const OrtMemoryInfo *info, int *out);  /* 74 */
  void *unused_75[3];
  OrtStatus *(*GetAllocatorWithDefaultOptions)(OrtAllocator **out);  /* 78 */
  void *unused_79[6];
  OrtStatus *(*KernelInfoGetAttribute_float)(const OrtKernelInfo *info, const char *name, float *out);  /* 85 */
  OrtStatus *(*KernelInfoGetAttribute_int64)(const OrtKernelInfo *info, const char *name, int64_t *out);  /* 86 */
  OrtStatus *(*KernelInfoGetAttribute_string)(const OrtKernelInfo *info, const char *name, char *out,
      size_t *size);  /* 87 */
  OrtStatus *(*KernelContext_GetInputCount)(const OrtKernelContext *context, size_t *out);  /* 88 */
  OrtStatus *(*KernelContext_GetOutputCount)(const OrtKernelContext *context, size_t *out);  /* 89 */
  OrtStatus *(*KernelContext_GetInput)(const OrtKernelContext *context, size_t index, const OrtValue **out);  /* 90 */
  OrtStatus *(*KernelContext_GetOutput)(OrtKernelContext *context, size_t index, const int64_t *dims, size_t rank,
      OrtValue **out);  /* 91 */
  void (*ReleaseEnv)(OrtEnv *env);  /* 92 */
  void (*ReleaseStatus)(OrtStatus *status);  /* 93 */
  void (*ReleaseMemoryInfo)(OrtMemoryInfo *info);  /* 94 */
  void (*ReleaseSession)(OrtSession *session);  /* 95 */
  void (*ReleaseValue)(OrtValue *value);  /* 96 */
  void *unused_97[2];
  void (*ReleaseTensorTypeAndShapeInfo)(OrtTensorTypeAndShapeInfo *info);  /* 99 */
  void (*ReleaseSessionOptions)(OrtSessionOptions *options);  /* 100 */
  void *unused_101[29];
  OrtStatus *(*AddSessionConfigEntry)(OrtSessionOptions *options, const char *key, const char *value);  /* 130 */
  void *unused_131[19];
  OrtStatus *(*AddInitializer)(OrtSessionOptions *options, const char *name, const OrtValue *value);  /* 150 */
  void *unused_151[11];
  OrtStatus *(*KernelInfoGetAttributeArray_float)(const OrtKernelInfo *info, const char *name, float *out,
      size_t *size);  /* 162 */
  OrtStatus *(*KernelInfoGetAttributeArray_int64)(const OrtKernelInfo *info, const char *name, int64_t *out,
      size_t *size);  /* 163 */
  void *unused_164[47];
  OrtStatus *(*CreateOpAttr)(const char *name, const void *data, int length, int type, OrtOpAttr **out);  /* 211 */
  void (*ReleaseOpAttr)(OrtOpAttr *attribute);  /* 212 */
  void *unused_213[17];
  OrtStatus *(*KernelInfo_GetInputCount)(const OrtKernelInfo *info, size_t *out);  /* 230 */
  OrtStatus *(*KernelInfo_GetOutputCount)(const OrtKernelInfo *info, size_t *out);  /* 231 */
  OrtStatus *(*KernelInfo_GetInputName)(const OrtKernelInfo *info, size_t index, char *out, size_t *size);  /* 232 */
  OrtStatus *(*KernelInfo_GetOutputName)(const OrtKernelInfo *info, size_t index, char *out, size_t *size);  /* 233 */
  void *unused_234[2];
  OrtStatus *(*KernelInfoGetAttribute_tensor)(const OrtKernelInfo *info, const char *name, OrtAllocator *allocator,
      OrtValue **out);  /* 236 */
  void *unused_237[7];
  OrtStatus *(*KernelInfo_GetNodeName)(const OrtKernelInfo *info, char *out, size_t *size);  /* 244 */
  void *unused_245[2];
  OrtStatus *(*Logger_LogMessage)(const OrtLogger *logger, int level, const char *message, const char *file,
      int line, const char *function);  /* 247 */
  void *unused_248[1];
  OrtStatus *(*KernelInfoGetConstantInput_tensor)(const OrtKernelInfo *info, size_t index, int *is_constant,
      const OrtValue **out);  /* 249 */
  void *unused_250[4];
  const char *(*GetBuildInfoString)(void);  /* 254 */
  void *unused_255[12];
  OrtStatus *(*ShapeInferContext_GetInputCount)(const OrtShapeInferContext *context, size_t *out);  /* 267 */
  OrtStatus *(*ShapeInferContext_GetInputTypeShape)(const OrtShapeInferContext *context, size_t index,
      OrtTensorTypeAndShapeInfo **out);  /* 268 */
  OrtStatus *(*ShapeInferContext_GetAttribute)(const OrtShapeInferContext *context, const char *name,
      const OrtOpAttr **out);  /* 269 */
  OrtStatus *(*ShapeInferContext_SetOutputTypeShape)(const OrtShapeInferContext *context, size_t index,
      const OrtTensorTypeAndShapeInfo *info);  /* 270 */
  OrtStatus *(*SetSymbolicDimensions)(OrtTensorTypeAndShapeInfo *info, const char *names[], size_t rank);  /* 271 */
  OrtStatus *(*ReadOpAttr)(const OrtOpAttr *attribute, int type, void *data, size_t length, size_t *out);  /* 272 */
  void *unused_273[16];
  OrtStatus *(*GetValueInfoName)(const OrtValueInfo *value, const char **out);  /* 289 */
  OrtStatus *(*GetValueInfoTypeInfo)(const OrtValueInfo *value, const OrtTypeInfo **out);  /* 290 */
  const OrtModelEditorApi *(*GetModelEditorApi)(void);  /* 291 */
  void *unused_292[3];
  void (*CreateKeyValuePairs)(OrtKeyValuePairs **out);  /* 295 */
  void (*AddKeyValuePair)(OrtKeyValuePairs *pairs, const char *key, const char *value);  /* 296 */
  const char *(*GetKeyValue)(const OrtKeyValuePairs *pairs, const char *key);  /* 297 */
  void (*GetKeyValuePairs)(const OrtKeyValuePairs *pairs, const char *const **keys, const char *const **values,
      size_t *count);  /* 298 */
  void *unused_299[1];
  void (*ReleaseKeyValuePairs)(OrtKeyValuePairs *pairs);  /* 300 */
  void *unused_301[6];
  int (*HardwareDevice_Type)(const OrtHardwareDevice *device);  /* 307 */
  uint32_t (*HardwareDevice_VendorId)(const OrtHardwareDevice *device);  /* 308 */
  void *unused_309[1];
  uint32_t (*HardwareDevice_DeviceId)(const OrtHardwareDevice *device);  /* 310 */
  const OrtKeyValuePairs *(*HardwareDevice_Metadata)(const OrtHardwareDevice *device);  /* 311 */
  void *unused_312[2];
  const OrtKeyValuePairs *(*EpDevice_EpMetadata)(const OrtEpDevice *device);  /* 314 */
  void *unused_315[1];
  const OrtHardwareDevice *(*EpDevice_Device)(const OrtEpDevice *device);  /* 316 */
  const OrtEpApi *(*GetEpApi)(void);  /* 317 */
  OrtStatus *(*GetTensorSizeInBytes)(const OrtValue *value, size_t *out);  /* 318 */
  void *unused_319[1];
  OrtStatus *(*CreateMemoryInfo_V2)(const char *name, int device_type, uint32_t vendor_id, int32_t device_id,
      int memory_type, size_t alignment, int allocator_type, OrtMemoryInfo **out);  /* 320 */
  int (*MemoryInfoGetDeviceMemType)(const OrtMemoryInfo *info);  /* 321 */
  uint32_t (*MemoryInfoGetVendorId)(const OrtMemoryInfo *info);  /* 322 */
  void *unused_323[3];
  OrtStatus *(*ValueInfo_GetInitializerValue)(const OrtValueInfo *value, const OrtValue **out);  /* 326 */
  OrtStatus *(*ValueInfo_GetExternalInitializerInfo)(const OrtValueInfo *value,
      OrtExternalInitializerInfo **out);  /* 327 */
  void *unused_328[3];
  OrtStatus *(*ValueInfo_IsConstantInitializer)(const OrtValueInfo *value, _Bool *out);  /* 331 */
  void *unused_332[1];
  OrtStatus *(*Graph_GetName)(const OrtGraph *graph, const char **out);  /* 333 */
  OrtStatus *(*Graph_GetModelPath)(const OrtGraph *graph, const char **out);  /* 334 */
  OrtStatus *(*Graph_GetOnnxIRVersion)(const OrtGraph *graph, int64_t *out);  /* 335 */
  OrtStatus *(*Graph_GetNumOperatorSets)(const OrtGraph *graph, size_t *out);  /* 336 */
  OrtStatus *(*Graph_GetOperatorSets)(const OrtGraph *graph, const char **domains, int64_t *versions,
      size_t count);  /* 337 */
  OrtStatus *(*Graph_GetNumInputs)(const OrtGraph *graph, size_t *out);  /* 338 */
  OrtStatus *(*Graph_GetInputs)(const OrtGraph *graph, const OrtValueInfo **out, size_t count);  /* 339 */
  OrtStatus *(*Graph_GetNumOutputs)(const OrtGraph *graph, size_t *out);  /* 340 */
  OrtStatus *(*Graph_GetOutputs)(const OrtGraph *graph, const OrtValueInfo **out, size_t count);  /* 341 */
  OrtStatus *(*Graph_GetNumInitializers)(const OrtGraph *graph, size_t *out);  /* 342 */
  OrtStatus *(*Graph_GetInitializers)(const OrtGraph *graph, const OrtValueInfo **out, size_t count);  /* 343 */
  OrtStatus *(*Graph_GetNumNodes)(const OrtGraph *graph, size_t *out);  /* 344 */
  OrtStatus *(*Graph_GetNodes)(const OrtGraph *graph, const OrtNode **out, size_t count);  /* 345 */
  OrtStatus *(*Graph_GetParentNode)(const OrtGraph *graph, const OrtNode **out);  /* 346 */
  void *unused_347[1];
  OrtStatus *(*Node_GetId)(const OrtNode *node, size_t *out);  /* 348 */
  OrtStatus *(*Node_GetName)(const OrtNode *node, const char **out);  /* 349 */
  OrtStatus *(*Node_GetOperatorType)(const OrtNode *node, const char **out);  /* 350 */
  OrtStatus *(*Node_GetDomain)(const OrtNode *node, const char **out);  /* 351 */
  OrtStatus *(*Node_GetSinceVersion)(const OrtNode *node, int *out);  /* 352 */
  OrtStatus *(*Node_GetNumInputs)(const OrtNode *node, size_t *out);  /* 353 */
  OrtStatus *(*Node_GetInputs)(const OrtNode *node, const OrtValueInfo **out, size_t count);  /* 354 */
  OrtStatus *(*Node_GetNumOutputs)(const OrtNode *node, size_t *out);  /* 355 */
  OrtStatus *(*Node_GetOutputs)(const OrtNode *node, const OrtValueInfo **out, size_t count);  /* 356 */
  OrtStatus *(*Node_GetNumImplicitInputs)(const OrtNode *node, size_t *out);  /* 357 */
  OrtStatus *(*Node_GetImplicitInputs)(const OrtNode *node, const OrtValueInfo **out, size_t count);  /* 358 */
  OrtStatus *(*Node_GetNumAttributes)(const OrtNode *node, size_t *out);  /* 359 */
  OrtStatus *(*Node_GetAttributes)(const OrtNode *node, const OrtOpAttr **out, size_t count);  /* 360 */
  void *unused_361[1];
  OrtStatus *(*OpAttr_GetTensorAttributeAsOrtValue)(const OrtOpAttr *attribute, OrtValue **out);  /* 362 */
  OrtStatus *(*OpAttr_GetType)(const OrtOpAttr *attribute, int *out);  /* 363 */
  OrtStatus *(*OpAttr_GetName)(const OrtOpAttr *attribute, const char **out);  /* 364 */
  OrtStatus *(*Node_GetNumSubgraphs)(const OrtNode *node, size_t *out);  /* 365 */
  OrtStatus *(*Node_GetSubgraphs)(const OrtNode *node, const OrtGraph **out, size_t count,
      const char **attribute_names);  /* 366 */
  void *unused_367[1];
  OrtStatus *(*Node_GetEpName)(const OrtNode *node, const char **out);  /* 368 */
  void (*ReleaseExternalInitializerInfo)(OrtExternalInitializerInfo *info);  /* 369 */
  const char *(*ExternalInitializerInfo_GetFilePath)(const OrtExternalInitializerInfo *info);  /* 370 */
  int64_t (*ExternalInitializerInfo_GetFileOffset)(const OrtExternalInitializerInfo *info);  /* 371 */
  size_t (*ExternalInitializerInfo_GetByteSize)(const OrtExternalInitializerInfo *info);  /* 372 */
  const char *(*GetRunConfigEntry)(const OrtRunOptions *options, const char *key);  /* 373 */
  void *unused_374[5];
  OrtStatus *(*GetSessionOptionsConfigEntries)(const OrtSessionOptions *options, OrtKeyValuePairs **out);  /* 379 */
  void *unused_380[10];
  _Bool (*TensorTypeAndShape_HasShape)(const OrtTensorTypeAndShapeInfo *info);  /* 390 */
  void *unused_391[23];
  OrtStatus *(*GetTensorElementTypeAndShapeDataReference)(const OrtValue *value, int *type, const int64_t **dims,
      size_t *rank);  /* 414 */
  void *unused_415[8];
  OrtStatus *(*KernelContext_GetSyncStream)(const OrtKernelContext *context, OrtSyncStream **out);  /* 423 */
};

struct OrtEpApi {
  OrtStatus *(*CreateEpDevice)(OrtEpFactory *factory, const OrtHardwareDevice *device,
      const OrtKeyValuePairs *metadata, const OrtKeyValuePairs *options, OrtEpDevice **out);  /* 0 */
  void (*ReleaseEpDevice)(OrtEpDevice *device);  /* 1 */
  OrtStatus *(*EpGraphSupportInfo_AddNodesToFuse)(OrtEpGraphSupportInfo *info, const OrtNode *const *nodes,
      size_t count, const OrtNodeFusionOptions *options);  /* 2 */
  OrtStatus *(*EpGraphSupportInfo_AddSingleNode)(OrtEpGraphSupportInfo *info, const OrtNode *node);  /* 3 */
  const char *(*NodeComputeContext_NodeName)(const OrtNodeComputeContext *context);  /* 4 */
  OrtStatus *(*EpDevice_AddAllocatorInfo)(OrtEpDevice *device, const OrtMemoryInfo *info);  /* 5 */
  const OrtMemoryDevice *(*MemoryInfo_GetMemoryDevice)(const OrtMemoryInfo *info);  /* 6 */
  const OrtMemoryDevice *(*Value_GetMemoryDevice)(const OrtValue *value);  /* 7 */
  _Bool (*MemoryDevice_AreEqual)(const OrtMemoryDevice *a, const OrtMemoryDevice *b);  /* 8 */
  int (*MemoryDevice_GetDeviceType)(const OrtMemoryDevice *device);  /* 9 */
  int (*MemoryDevice_GetMemoryType)(const OrtMemoryDevice *device);  /* 10 */
  uint32_t (*MemoryDevice_GetVendorId)(const OrtMemoryDevice *device);  /* 11 */
  uint32_t (*MemoryDevice_GetDeviceId)(const OrtMemoryDevice *device);  /* 12 */
  const OrtSyncStreamImpl *(*SyncStream_GetImpl)(const OrtSyncStream *stream);  /* 13 */
  void *unused_14[2];
  OrtStatus *(*CreateHardwareDevice)(int type, uint32_t vendor_id, uint32_t device_id, const char *vendor,
      const OrtKeyValuePairs *metadata, OrtHardwareDevice **out);  /* 16 */
  void (*ReleaseHardwareDevice)(OrtHardwareDevice *device);  /* 17 */
  OrtStatus *(*CreateKernelRegistry)(OrtKernelRegistry **out);  /* 18 */
  void (*ReleaseKernelRegistry)(OrtKernelRegistry *registry);  /* 19 */
  OrtStatus *(*KernelRegistry_AddKernel)(OrtKernelRegistry *registry, const OrtKernelDef *definition,
      OrtKernelCreateFunc create, void *state);  /* 20 */
  OrtStatus *(*CreateKernelDefBuilder)(OrtKernelDefBuilder **out);  /* 21 */
  void (*ReleaseKernelDefBuilder)(OrtKernelDefBuilder *builder);  /* 22 */
  OrtStatus *(*KernelDefBuilder_SetOperatorType)(OrtKernelDefBuilder *builder, const char *op_type);  /* 23 */
  OrtStatus *(*KernelDefBuilder_SetDomain)(OrtKernelDefBuilder *builder, const char *domain);  /* 24 */
  OrtStatus *(*KernelDefBuilder_SetSinceVersion)(OrtKernelDefBuilder *builder, int first, int last);  /* 25 */
  OrtStatus *(*KernelDefBuilder_SetExecutionProvider)(OrtKernelDefBuilder *builder, const char *ep_name);  /* 26 */
  OrtStatus *(*KernelDefBuilder_SetInputMemType)(OrtKernelDefBuilder *builder, size_t index,
      int memory_type);  /* 27 */
  OrtStatus *(*KernelDefBuilder_SetOutputMemType)(OrtKernelDefBuilder *builder, size_t index,
      int memory_type);  /* 28 */
  OrtStatus *(*KernelDefBuilder_AddTypeConstraint)(OrtKernelDefBuilder *builder, const char *name,
      const OrtDataType *const *types, size_t count);  /* 29 */
  void *unused_30[2];
  OrtStatus *(*KernelDefBuilder_Build)(OrtKernelDefBuilder *builder, OrtKernelDef **out);  /* 32 */
  void (*ReleaseKernelDef)(OrtKernelDef *definition);  /* 33 */
  void *unused_34[6];
  OrtStatus *(*GetTensorDataType)(int element_type, const OrtDataType **out);  /* 40 */
  OrtStatus *(*EpGraphSupportInfo_LookUpKernel)(OrtEpGraphSupportInfo *info, const OrtNode *node,
      const OrtKernelDef **out);  /* 41 */
  void *unused_42[2];
  OrtStatus *(*DeviceEpIncompatibilityDetails_SetDetails)(OrtDeviceEpIncompatibilityDetails *details,
      uint32_t reasons, int32_t error_code, const char *notes);  /* 44 */
  OrtStatus *(*CreateIfKernel)(const OrtKernelInfo *info, OrtKernelImpl **out);  /* 45 */
  OrtStatus *(*CreateLoopKernel)(const OrtKernelInfo *info, OrtLoopKernelHelper *helper, OrtKernelImpl **out);  /* 46 */
  OrtStatus *(*CreateScanKernel)(const OrtKernelInfo *info, OrtScanKernelHelper *helper, OrtKernelImpl **out);  /* 47 */
  void *unused_48[1];
  OrtStatus *(*GetEnvConfigEntries)(OrtKeyValuePairs **out);  /* 49 */
  OrtStatus *(*GetOpSchema)(const char *name, int newest, const char *domain, OrtOpSchema **out);  /* 50 */
  void (*ReleaseOpSchema)(OrtOpSchema *schema);  /* 51 */
  OrtStatus *(*OpSchema_GetSinceVersion)(const OrtOpSchema *schema, int *out);  /* 52 */
  void *unused_53[6];
  OrtStatus *(*OpSchema_GetTypeConstraintCount)(const OrtOpSchema *schema, size_t *out);  /* 59 */
  OrtStatus *(*OpSchema_GetTypeConstraint)(const OrtOpSchema *schema, size_t index,
      const OrtOpSchemaTypeConstraint **out);  /* 60 */
  OrtStatus *(*OpSchemaTypeConstraint_GetTypeParamName)(const OrtOpSchemaTypeConstraint *constraint,
      const char **out);  /* 61 */
  OrtStatus *(*OpSchemaTypeConstraint_GetAllowedTypes)(const OrtOpSchemaTypeConstraint *constraint,
      const char *const **types, size_t *count);  /* 62 */
  void *unused_63[2];
  OrtStatus *(*CreateProfilingEvent)(int category, int32_t process, int32_t thread, const char *name,
      int64_t timestamp_us, int64_t duration_us, const char *const *keys, const char *const *values, size_t count,
      OrtProfilingEvent **out);  /* 65 */
  void (*ReleaseProfilingEvent)(OrtProfilingEvent *event);  /* 66 */
  void *unused_67[1];
  OrtStatus *(*ProfilingEvent_GetName)(const OrtProfilingEvent *event, const char **out);  /* 68 */
  OrtStatus *(*ProfilingEvent_GetTimestampUs)(const OrtProfilingEvent *event, int64_t *out);  /* 69 */
  OrtStatus *(*ProfilingEvent_GetDurationUs)(const OrtProfilingEvent *event, int64_t *out);  /* 70 */
  OrtStatus *(*ProfilingEvent_GetArgValue)(const OrtProfilingEvent *event, const char *key,
      const char **out);  /* 71 */
  OrtStatus *(*ProfilingEventsContainer_AddEvents)(OrtProfilingEventsContainer *container,
      const OrtProfilingEvent *const *events, size_t count);  /* 72 */
};
