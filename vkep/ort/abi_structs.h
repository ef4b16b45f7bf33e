struct OrtModelEditorApi {
  void *unused_0[6];
  OrtStatus *(*CreateNode)(const char *op_type, const char *domain, const char *name, const char *const *inputs,
      size_t input_count, const char *const *outputs, size_t output_count, OrtOpAttr **attributes,
      size_t attribute_count, OrtNode **out);  /* 6 */
};

/* What vkep implements. */

struct OrtEpFactory {
  uint32_t ort_version_supported;
  const char *(*GetName)(const OrtEpFactory *);
  const char *(*GetVendor)(const OrtEpFactory *);
  OrtStatus *(*GetSupportedDevices)(OrtEpFactory *, const OrtHardwareDevice *const *devices, size_t count,
      OrtEpDevice **out, size_t room, size_t *made);
  OrtStatus *(*CreateEp)(OrtEpFactory *, const OrtHardwareDevice *const *devices,
      const OrtKeyValuePairs *const *metadata, size_t count, const OrtSessionOptions *options,
      const OrtLogger *logger, OrtEp **out);
  void (*ReleaseEp)(OrtEpFactory *, OrtEp *);
  uint32_t (*GetVendorId)(const OrtEpFactory *);
  const char *(*GetVersion)(const OrtEpFactory *);
  OrtStatus *(*ValidateCompiledModelCompatibilityInfo)(OrtEpFactory *, const OrtHardwareDevice *const *devices,
      size_t count, const char *info, int *out);
  OrtStatus *(*CreateAllocator)(OrtEpFactory *, const OrtMemoryInfo *info, const OrtKeyValuePairs *options,
      OrtAllocator **out);
  void (*ReleaseAllocator)(OrtEpFactory *, OrtAllocator *);
  OrtStatus *(*CreateDataTransfer)(OrtEpFactory *, OrtDataTransferImpl **out);
  _Bool (*IsStreamAware)(const OrtEpFactory *);
  OrtStatus *(*CreateSyncStreamForDevice)(OrtEpFactory *, const OrtMemoryDevice *device,
      const OrtKeyValuePairs *options, OrtSyncStreamImpl **out);
  OrtStatus *(*GetHardwareDeviceIncompatibilityDetails)(OrtEpFactory *, const OrtHardwareDevice *device,
      OrtDeviceEpIncompatibilityDetails *details);
  OrtStatus *(*CreateExternalResourceImporterForDevice)(OrtEpFactory *, const OrtEpDevice *device,
      OrtExternalResourceImporterImpl **out);
  OrtStatus *(*GetNumCustomOpDomains)(OrtEpFactory *, size_t *out);
  OrtStatus *(*GetCustomOpDomains)(OrtEpFactory *, OrtCustomOpDomain **out, size_t room);
  OrtStatus *(*InitGraphicsInterop)(OrtEpFactory *, const OrtEpDevice *device,
      const OrtGraphicsInteropConfig *config);
  OrtStatus *(*DeinitGraphicsInterop)(OrtEpFactory *, const OrtEpDevice *device);
  OrtStatus *(*SelectBestModelCandidate)(OrtEpFactory *, const OrtHardwareDevice *device,
      const OrtKeyValuePairs *const *candidates, size_t count, const OrtSessionOptions *options, size_t *out);
};

struct OrtCustomOp {
  uint32_t version;
  void *CreateKernel;
  const char *(*GetName)(const OrtCustomOp *);
  const char *(*GetExecutionProviderType)(const OrtCustomOp *);
  int (*GetInputType)(const OrtCustomOp *, size_t index);
  size_t (*GetInputTypeCount)(const OrtCustomOp *);
  int (*GetOutputType)(const OrtCustomOp *, size_t index);
  size_t (*GetOutputTypeCount)(const OrtCustomOp *);
  void *KernelCompute;
  void *KernelDestroy;
  int (*GetInputCharacteristic)(const OrtCustomOp *, size_t index);
  int (*GetOutputCharacteristic)(const OrtCustomOp *, size_t index);
  int (*GetInputMemoryType)(const OrtCustomOp *, size_t index);
  int (*GetVariadicInputMinArity)(const OrtCustomOp *);
  int (*GetVariadicInputHomogeneity)(const OrtCustomOp *);
  int (*GetVariadicOutputMinArity)(const OrtCustomOp *);
  int (*GetVariadicOutputHomogeneity)(const OrtCustomOp *);
  OrtStatus *(*CreateKernelV2)(const OrtCustomOp *, const OrtApi *api, const OrtKernelInfo *info, void **out);
  void *KernelComputeV2;
  OrtStatus *(*InferOutputShapeFn)(const OrtCustomOp *, OrtShapeInferContext *context);
  int (*GetStartVersion)(const OrtCustomOp *);
  int (*GetEndVersion)(const OrtCustomOp *);
  void *unused[4];
};

struct OrtEp {
  uint32_t ort_version_supported;
  const char *(*GetName)(const OrtEp *);
  OrtStatus *(*GetCapability)(OrtEp *, const OrtGraph *graph, OrtEpGraphSupportInfo *info);
  OrtStatus *(*Compile)(OrtEp *, const OrtGraph **graphs, const OrtNode **fused, size_t count,
      OrtNodeComputeInfo **infos, OrtNode **context_nodes);
  void (*ReleaseNodeComputeInfos)(OrtEp *, OrtNodeComputeInfo **infos, size_t count);
  OrtStatus *(*GetPreferredDataLayout)(OrtEp *, int *out);
  OrtStatus *(*ShouldConvertDataLayoutForOp)(OrtEp *, const char *domain, const char *op_type, int layout, int *out);
  OrtStatus *(*SetDynamicOptions)(OrtEp *, const char *const *keys, const char *const *values, size_t count);
  OrtStatus *(*OnRunStart)(OrtEp *, const OrtRunOptions *options);
  OrtStatus *(*OnRunEnd)(OrtEp *, const OrtRunOptions *options, _Bool sync_stream);
  OrtStatus *(*CreateAllocator)(OrtEp *, const OrtMemoryInfo *info, OrtAllocator **out);
  OrtStatus *(*CreateSyncStreamForDevice)(OrtEp *, const OrtMemoryDevice *device, OrtSyncStreamImpl **out);
  const char *(*GetCompiledModelCompatibilityInfo)(OrtEp *, const OrtGraph *graph);
  OrtStatus *(*GetKernelRegistry)(OrtEp *, const OrtKernelRegistry **out);
  OrtStatus *(*IsConcurrentRunSupported)(OrtEp *, _Bool *out);
  OrtStatus *(*Sync)(OrtEp *);
  OrtStatus *(*CreateProfiler)(OrtEp *, OrtEpProfilerImpl **out);
  _Bool (*IsGraphCaptureEnabled)(const OrtEp *);
  _Bool (*IsGraphCaptured)(const OrtEp *, int id);
  OrtStatus *(*ReplayGraph)(OrtEp *, int id);
  int (*GetGraphCaptureNodeAssignmentPolicy)(const OrtEp *);
  OrtStatus *(*GetAvailableResource)(const OrtEp *, OrtResourceCount *out);
  OrtStatus *(*OnSessionInitializationEnd)(OrtEp *);
  OrtStatus *(*GetDefaultMemoryDevice)(const OrtEp *, const OrtMemoryDevice **out);
  OrtStatus *(*ReleaseCapturedGraph)(OrtEp *, int id);
  void *GetWeightlessSupport;
};

struct OrtNodeComputeInfo {
  uint32_t ort_version_supported;
  OrtStatus *(*CreateState)(OrtNodeComputeInfo *, OrtNodeComputeContext *context, void **state);
  OrtStatus *(*Compute)(OrtNodeComputeInfo *, void *state, OrtKernelContext *context);
  void (*ReleaseState)(OrtNodeComputeInfo *, void *state);
};

struct OrtKernelImpl {
  uint32_t ort_version_supported;
  uint32_t flags;
  OrtStatus *(*Compute)(OrtKernelImpl *, OrtKernelContext *context);
  void (*Release)(OrtKernelImpl *);
  void *PrePackWeight;
  void *SetSharedPrePackedWeight;
};

struct OrtLoopKernelHelper {
  uint32_t ort_version_supported;
  void (*Release)(OrtLoopKernelHelper *);
  OrtStatus *(*ConcatOutput)(OrtLoopKernelHelper *, void *stream, const OrtValue *const *values, size_t count,
      void *output, size_t bytes);
};

struct OrtScanKernelHelper {
  uint32_t ort_version_supported;
  void (*Release)(OrtScanKernelHelper *);
  OrtStatus *(*Transpose)(OrtScanKernelHelper *, const size_t *permutation, size_t count, const OrtValue *source,
      OrtSyncStream *stream, OrtValue *target);
};

struct OrtAllocator {
  uint32_t version;
  void *(*Alloc)(OrtAllocator *, size_t bytes);
  void (*Free)(OrtAllocator *, void *pointer);
  const OrtMemoryInfo *(*Info)(const OrtAllocator *);
  void *(*Reserve)(OrtAllocator *, size_t bytes);
  OrtStatus *(*GetStats)(const OrtAllocator *, OrtKeyValuePairs **out);
  void *(*AllocOnStream)(OrtAllocator *, size_t bytes, OrtSyncStream *stream);
  OrtStatus *(*Shrink)(OrtAllocator *);
};

struct OrtDataTransferImpl {
  uint32_t ort_version_supported;
  void (*Release)(OrtDataTransferImpl *);
  _Bool (*CanCopy)(const OrtDataTransferImpl *, const OrtMemoryDevice *source, const OrtMemoryDevice *target);
  OrtStatus *(*CopyTensors)(OrtDataTransferImpl *, const OrtValue **sources, OrtValue **targets,
      OrtSyncStream **streams, size_t count);
};

struct OrtSyncStreamImpl {
  uint32_t ort_version_supported;
  void (*Release)(OrtSyncStreamImpl *);
  void *(*GetHandle)(OrtSyncStreamImpl *);
  OrtStatus *(*CreateNotification)(OrtSyncStreamImpl *, OrtSyncNotificationImpl **out);
  OrtStatus *(*Flush)(OrtSyncStreamImpl *);
  OrtStatus *(*OnSessionRunEnd)(OrtSyncStreamImpl *);
};

struct OrtSyncNotificationImpl {
  uint32_t ort_version_supported;
  void (*Release)(OrtSyncNotificationImpl *);
  OrtStatus *(*Activate)(OrtSyncNotificationImpl *);
  OrtStatus *(*WaitOnDevice)(OrtSyncNotificationImpl *, OrtSyncStream *consumer);
  OrtStatus *(*WaitOnHost)(OrtSyncNotificationImpl *);
};

struct OrtExternalResourceImporterImpl {
  uint32_t ort_version_supported;
  _Bool (*CanImportMemory)(const OrtExternalResourceImporterImpl *, int handle_type);
  OrtStatus *(*ImportMemory)(OrtExternalResourceImporterImpl *, const OrtExternalMemoryDescriptor *descriptor,
      OrtExternalMemoryHandle **out);
  void (*ReleaseMemory)(OrtExternalResourceImporterImpl *, OrtExternalMemoryHandle *handle);
  OrtStatus *(*CreateTensorFromMemory)(OrtExternalResourceImporterImpl *, const OrtExternalMemoryHandle *memory,
      const OrtExternalTensorDescriptor *descriptor, OrtValue **out);
  _Bool (*CanImportSemaphore)(const OrtExternalResourceImporterImpl *, int type);
  OrtStatus *(*ImportSemaphore)(OrtExternalResourceImporterImpl *, const OrtExternalSemaphoreDescriptor *descriptor,
      OrtExternalSemaphoreHandle **out);
  void (*ReleaseSemaphore)(OrtExternalResourceImporterImpl *, OrtExternalSemaphoreHandle *handle);
  OrtStatus *(*WaitSemaphore)(OrtExternalResourceImporterImpl *, OrtExternalSemaphoreHandle *handle,
      OrtSyncStream *stream, uint64_t value);
  OrtStatus *(*SignalSemaphore)(OrtExternalResourceImporterImpl *, OrtExternalSemaphoreHandle *handle,
      OrtSyncStream *stream, uint64_t value);
  void (*Release)(OrtExternalResourceImporterImpl *);
};

struct OrtExternalMemoryHandle {
  uint32_t version;
  const OrtEpDevice *ep_device;
  OrtExternalMemoryDescriptor descriptor;
  void (*Release)(OrtExternalMemoryHandle *);
};

struct OrtExternalSemaphoreHandle {
  uint32_t version;
  const OrtEpDevice *ep_device;
  OrtExternalSemaphoreDescriptor descriptor;
  void (*Release)(OrtExternalSemaphoreHandle *);
};

struct OrtEpProfilerImpl {
  uint32_t ort_version_supported;
  void (*Release)(OrtEpProfilerImpl *);
  OrtStatus *(*StartProfiling)(OrtEpProfilerImpl *, int64_t offset_ns);
  OrtStatus *(*StartEvent)(OrtEpProfilerImpl *, uint64_t correlation);
  OrtStatus *(*StopEvent)(OrtEpProfilerImpl *, uint64_t correlation, const OrtProfilingEvent *event);
  OrtStatus *(*EndProfiling)(OrtEpProfilerImpl *, OrtProfilingEventsContainer *container);
};

/* vkep's own C helpers (shim.c): many calls of a run as one. */

/* OrtEp, and what its streams are made of without Python: ONNX Runtime makes them under a lock that a Python thread may be
 * waiting for while it holds Python's own (IOBinding's bind_ortvalue_input does). */
typedef struct VkepEp {
  OrtEp ep;
  OrtSyncStreamImpl *stream;  /* does the work of all streams of the session */
  void *handle;
  const OrtApi *api;
  const OrtEpApi *ep_api;
} VkepEp;

/* OrtEp.CreateSyncStreamForDevice of a VkepEp. */
OrtStatus *vkep_ep_stream(OrtEp *ep, const OrtMemoryDevice *device, OrtSyncStreamImpl **out);

/* The stream of vkep's that does this one's work; the stream itself where it is another library's. */
const OrtSyncStreamImpl *vkep_working_stream(const OrtSyncStreamImpl *stream);

/* ONNX Runtime counts UINT2, INT2 and FLOAT8E8M0 as element types 24, 25 and 26; ONNX counts them as 25, 26 and 24. */
int vkep_onnx_type(int type);

typedef struct VkepTensor {
  void *data;           /* NULL: an optional input that is absent, or a tensor without elements */
  const int64_t *dims;
  size_t rank;
  int32_t type;         /* ONNX element type, 0 where absent */
  int32_t on_device;    /* 1: data is a device pointer */
  size_t bytes;         /* in ONNX Runtime's memory, where elements narrower than a byte are packed; 0 for texts */
} VkepTensor;

/* A run's inputs and outputs that lie on the device as its plan takes them: the address (device pointers carry the number of
 * their memory domain from bit `shift` on, see memory.py), or 0 for what lies elsewhere, in another domain than `domain`,
 * or at no multiple of `alignment`. */
typedef struct VkepDomain {
  uint64_t domain;
  uint32_t shift;
  uint32_t alignment;
} VkepDomain;

/* Reads inputs `which` of a run; writes (type, rank, dims) of each to `signature` and returns its length, or -1 with
 * *status set. The signature needs room for count * 18 numbers, and no tensor may have more than 16 dimensions. */
int64_t vkep_gather(const OrtApi *, const OrtEpApi *, const OrtKernelContext *, size_t count, const size_t *which,
    const VkepDomain *, VkepTensor *out, uint64_t *addresses, int64_t *signature, OrtStatus **status);

/* Makes output `index` of a run. */
OrtStatus *vkep_output(const OrtApi *, const OrtEpApi *, OrtKernelContext *, size_t index, const int64_t *dims,
    size_t rank, VkepTensor *out);

/* Makes outputs `which` of a run; `dims` has those of each in turn. */
OrtStatus *vkep_outputs(const OrtApi *, const OrtEpApi *, OrtKernelContext *, size_t count, const size_t *which,
    const VkepDomain *, const int64_t *dims, const size_t *ranks, uint64_t *addresses);

/* What a tensor value is and where it lies. */
OrtStatus *vkep_tensor(const OrtApi *, const OrtEpApi *, const OrtValue *, VkepTensor *out);

/* The same of `count` pairs: source, target, source, target. */
OrtStatus *vkep_pairs(const OrtApi *, const OrtEpApi *, const OrtValue *const *sources, OrtValue *const *targets,
    size_t count, VkepTensor *out);

/* Copies host memory without Python's lock. */
void vkep_copy(void *target, const void *source, size_t bytes);

/* 1 where all pairs go up to device memory of one domain (device pointers carry its number from bit `shift` on), 2 where all
 * come down from it: `key` has each one's device pointer and bytes then, `hosts` the other end. 0 for all else: pairs without
 * bytes or of two sizes, and what vkep_pairs gives the failure of. */
int vkep_copies(const OrtApi *, const OrtEpApi *, const OrtValue *const *sources, OrtValue *const *targets, size_t count,
    unsigned shift, uint64_t *key, char **hosts);

/* Copies of such a key between `hosts` and `places`, without Python's lock. */
void vkep_copy_all(char *const *targets, char *const *sources, const uint64_t *key, size_t count);

/* Blocks of a memory domain that change hands without its arena, and without Python: taken by their size, the lowest first, so
 * that a run's tensors lie where the last one's did. `turn` counts; odd: the block is free. */
typedef struct VkepSpare {
  uint64_t pointer;
  uint64_t bytes;
  uint64_t turn;
} VkepSpare;
typedef struct VkepSpares {
  char lock;
  uint32_t grain;      /* sizes are multiples of it */
  uint64_t most;       /* bytes that may be free */
  uint64_t free_bytes;
  uint64_t free_count;
  size_t count;
  VkepSpare blocks[512];
} VkepSpares;

/* A free block of so many bytes, rounded up; 0 where there is none. */
uint64_t vkep_take(VkepSpares *, uint64_t bytes);

/* 1: the block is free now; 0: it is none of these, or there are enough and it is none of these any more; -1: it was free. */
int vkep_give(VkepSpares *, uint64_t pointer);

/* Enters a block as free: 1, or 0 where there is no room. */
int vkep_add(VkepSpares *, uint64_t pointer, uint64_t bytes);

/* Takes all free ones out, and writes their pointers; returns how many (512 at most). */
size_t vkep_drain(VkepSpares *, uint64_t *pointers);

/* A block's turn, -1 where it is none of these. */
int64_t vkep_turn(VkepSpares *, uint64_t pointer);

/* After Python's end: members that do nothing, and members that return an error. */
void vkep_end(const OrtApi *api);
void *vkep_nothing(void);
OrtStatus *vkep_ended(void);

/* OrtAllocator whose Alloc, AllocOnStream and Free look at `spares` (NULL: none yet) before they call Python's. */
typedef struct VkepAllocator {
  OrtAllocator allocator;
  VkepSpares *spares;
  void *(*alloc)(OrtAllocator *, size_t bytes);
  void *(*alloc_on_stream)(OrtAllocator *, size_t bytes, OrtSyncStream *stream);
  void (*free)(OrtAllocator *, void *pointer);
} VkepAllocator;
void *vkep_alloc(OrtAllocator *, size_t bytes);
void *vkep_alloc_on_stream(OrtAllocator *, size_t bytes, OrtSyncStream *stream);
void vkep_free(OrtAllocator *, void *pointer);

/* OrtDataTransferImpl, and whose memory it copies: that of GPUs of `vendors`. */
typedef struct VkepTransfer {
  OrtDataTransferImpl transfer;
  const OrtEpApi *ep_api;
  size_t count;
  uint32_t vendors[16];
} VkepTransfer;

/* OrtDataTransferImpl.CanCopy of a VkepTransfer: ONNX Runtime asks before every copy. */
_Bool vkep_can_copy(const OrtDataTransferImpl *, const OrtMemoryDevice *source, const OrtMemoryDevice *target);
