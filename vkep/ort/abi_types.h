/* What vkep uses of ONNX Runtime's C interface, API level 29 (ONNX Runtime 1.29). The tables and structures grow only
 * at their ends, so a later release serves this level unchanged. Read by cffi and by the C compiler. The number behind
 * a function is its place in its table; places that vkep does not use are skipped. Enumerations travel as int.
 */

typedef struct OrtStatus OrtStatus;
typedef struct OrtLogger OrtLogger;
typedef struct OrtMemoryInfo OrtMemoryInfo;
typedef struct OrtMemoryDevice OrtMemoryDevice;
typedef struct OrtValue OrtValue;
typedef struct OrtValueInfo OrtValueInfo;
typedef struct OrtTypeInfo OrtTypeInfo;
typedef struct OrtTensorTypeAndShapeInfo OrtTensorTypeAndShapeInfo;
typedef struct OrtExternalInitializerInfo OrtExternalInitializerInfo;
typedef struct OrtGraph OrtGraph;
typedef struct OrtNode OrtNode;
typedef struct OrtOpAttr OrtOpAttr;
typedef struct OrtKeyValuePairs OrtKeyValuePairs;
typedef struct OrtHardwareDevice OrtHardwareDevice;
typedef struct OrtEpDevice OrtEpDevice;
typedef struct OrtEnv OrtEnv;
typedef struct OrtSession OrtSession;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtRunOptions OrtRunOptions;
typedef struct OrtKernelContext OrtKernelContext;
typedef struct OrtKernelInfo OrtKernelInfo;
typedef struct OrtCustomOp OrtCustomOp;
typedef struct OrtShapeInferContext OrtShapeInferContext;
typedef struct OrtCustomOpDomain OrtCustomOpDomain;
typedef struct OrtKernelRegistry OrtKernelRegistry;
typedef struct OrtKernelDef OrtKernelDef;
typedef struct OrtKernelDefBuilder OrtKernelDefBuilder;
typedef struct OrtDataType OrtDataType;
typedef struct OrtOpSchema OrtOpSchema;
typedef struct OrtOpSchemaTypeConstraint OrtOpSchemaTypeConstraint;
typedef struct OrtEpGraphSupportInfo OrtEpGraphSupportInfo;
typedef struct OrtNodeComputeContext OrtNodeComputeContext;
typedef struct OrtSyncStream OrtSyncStream;
typedef struct OrtDeviceEpIncompatibilityDetails OrtDeviceEpIncompatibilityDetails;
typedef struct OrtProfilingEvent OrtProfilingEvent;
typedef struct OrtProfilingEventsContainer OrtProfilingEventsContainer;

typedef struct OrtApi OrtApi;
typedef struct OrtEpApi OrtEpApi;
typedef struct OrtModelEditorApi OrtModelEditorApi;
typedef struct OrtEp OrtEp;
typedef struct OrtEpFactory OrtEpFactory;
typedef struct OrtAllocator OrtAllocator;
typedef struct OrtNodeComputeInfo OrtNodeComputeInfo;
typedef struct OrtKernelImpl OrtKernelImpl;
typedef struct OrtLoopKernelHelper OrtLoopKernelHelper;
typedef struct OrtScanKernelHelper OrtScanKernelHelper;
typedef struct OrtDataTransferImpl OrtDataTransferImpl;
typedef struct OrtSyncStreamImpl OrtSyncStreamImpl;
typedef struct OrtSyncNotificationImpl OrtSyncNotificationImpl;
typedef struct OrtEpProfilerImpl OrtEpProfilerImpl;
typedef struct OrtExternalResourceImporterImpl OrtExternalResourceImporterImpl;
typedef struct OrtExternalMemoryHandle OrtExternalMemoryHandle;
typedef struct OrtExternalSemaphoreHandle OrtExternalSemaphoreHandle;

typedef OrtStatus *(*OrtKernelCreateFunc)(void *state, const OrtKernelInfo *info, OrtKernelImpl **out);

typedef struct OrtApiBase {
  const OrtApi *(*GetApi)(uint32_t level);
  const char *(*GetVersionString)(void);
} OrtApiBase;

typedef struct OrtNodeFusionOptions {
  uint32_t ort_version_supported;
  _Bool drop_constant_initializers;
} OrtNodeFusionOptions;

typedef struct OrtExternalMemoryDescriptor {
  uint32_t version;
  int handle_type;
  void *native_handle;
  size_t size_bytes;
  size_t offset_bytes;
} OrtExternalMemoryDescriptor;

typedef struct OrtExternalSemaphoreDescriptor {
  uint32_t version;
  int type;
  void *native_handle;
} OrtExternalSemaphoreDescriptor;

typedef struct OrtExternalTensorDescriptor {
  uint32_t version;
  int element_type;
  const int64_t *shape;
  size_t rank;
  size_t offset_bytes;
} OrtExternalTensorDescriptor;

typedef struct OrtGraphicsInteropConfig {
  uint32_t version;
  int graphics_api;
  void *command_queue;
  const OrtKeyValuePairs *additional_options;
} OrtGraphicsInteropConfig;

typedef struct OrtResourceCount {
  uint32_t kind;
  uint32_t reserved;
  uint64_t words[6];
} OrtResourceCount;

