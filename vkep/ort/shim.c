/* The plugin library's C side: two exported functions, and the calls of a run that are many and small. */

int vkep_onnx_type(int type) { return type == 24 || type == 25 ? type + 1 : type == 26 ? 24 : type; }

static OrtStatus *describe(const OrtApi *api, const OrtEpApi *ep_api, const OrtValue *value, VkepTensor *out) {
  int type = 0;
  OrtStatus *status = api->GetTensorElementTypeAndShapeDataReference(value, &type, &out->dims, &out->rank);
  if (status != NULL) return status;
  out->type = vkep_onnx_type(type);
  const OrtMemoryDevice *device = ep_api->Value_GetMemoryDevice(value);
  /* a GPU's (1) default memory (0); its host-accessible memory (5) is the host's */
  out->on_device = device != NULL && ep_api->MemoryDevice_GetDeviceType(device) == 1 &&
                   ep_api->MemoryDevice_GetMemoryType(device) == 0;
  out->bytes = 0;
  if (type != 8) { /* texts have no size */
    status = api->GetTensorSizeInBytes(value, &out->bytes);
    if (status != NULL) return status;
  }
  return api->GetTensorMutableData((OrtValue *)value, &out->data);
}

OrtStatus *vkep_tensor(const OrtApi *api, const OrtEpApi *ep_api, const OrtValue *value, VkepTensor *out) {
  return describe(api, ep_api, value, out);
}

OrtStatus *vkep_pairs(const OrtApi *api, const OrtEpApi *ep_api, const OrtValue *const *sources,
                      OrtValue *const *targets, size_t count, VkepTensor *out) {
  for (size_t i = 0; i < count; ++i) {
    OrtStatus *status = describe(api, ep_api, sources[i], &out[2 * i]);
    if (status == NULL) status = describe(api, ep_api, targets[i], &out[2 * i + 1]);
    if (status != NULL) return status;
  }
  return NULL;
}

void vkep_copy(void *target, const void *source, size_t bytes) { memcpy(target, source, bytes); }

int vkep_copies(const OrtApi *api, const OrtEpApi *ep_api, const OrtValue *const *sources, OrtValue *const *targets,
                size_t count, unsigned shift, uint64_t *key, char **hosts) {
  int way = 0;
  for (size_t i = 0; i < count; ++i) {
    VkepTensor source, target;
    OrtStatus *status = describe(api, ep_api, sources[i], &source);
    if (status == NULL) status = describe(api, ep_api, targets[i], &target);
    if (status != NULL) {
      api->ReleaseStatus(status);
      return 0;
    }
    int here = target.on_device ? 1 : 2;
    if (source.on_device == target.on_device || source.bytes != target.bytes || source.bytes == 0) return 0;
    if (way != 0 && here != way) return 0;
    way = here;
    key[2 * i] = (uint64_t)(uintptr_t)(way == 1 ? target.data : source.data);
    key[2 * i + 1] = source.bytes;
    hosts[i] = way == 1 ? source.data : target.data;
    if (key[2 * i] >> shift != key[0] >> shift) return 0;
  }
  return way;
}

void vkep_copy_all(char *const *targets, char *const *sources, const uint64_t *key, size_t count) {
  for (size_t i = 0; i < count; ++i) memcpy(targets[i], sources[i], key[2 * i + 1]);
}

static void enter(VkepSpares *spares) {
  while (__atomic_test_and_set(&spares->lock, __ATOMIC_ACQUIRE)) sched_yield();
}

static void leave(VkepSpares *spares) { __atomic_clear(&spares->lock, __ATOMIC_RELEASE); }

static VkepSpare *spare(VkepSpares *spares, uint64_t pointer) {
  for (size_t i = 0; i < spares->count; ++i)
    if (spares->blocks[i].pointer == pointer) return &spares->blocks[i];
  return NULL;
}

static void turn(VkepSpares *spares, VkepSpare *block) {
  int now_free = ++block->turn % 2;
  spares->free_bytes += now_free ? block->bytes : -block->bytes;
  spares->free_count += now_free ? 1 : -1;
}

uint64_t vkep_take(VkepSpares *spares, uint64_t bytes) {
  uint64_t size = (bytes + spares->grain - 1) / spares->grain * spares->grain, pointer = 0;
  VkepSpare *lowest = NULL;
  enter(spares);
  for (size_t i = 0; i < spares->count; ++i) {
    VkepSpare *block = &spares->blocks[i];
    if (block->turn % 2 && block->bytes == size && (lowest == NULL || block->pointer < lowest->pointer)) lowest = block;
  }
  if (lowest != NULL) {
    turn(spares, lowest);
    pointer = lowest->pointer;
  }
  leave(spares);
  return pointer;
}

int vkep_give(VkepSpares *spares, uint64_t pointer) {
  int given = 0;
  enter(spares);
  VkepSpare *block = spare(spares, pointer);
  if (block != NULL && block->turn % 2) {
    given = -1;
  } else if (block != NULL && spares->free_bytes + block->bytes <= spares->most) {
    turn(spares, block);
    given = 1;
  } else if (block != NULL) {
    *block = spares->blocks[--spares->count];
  }
  leave(spares);
  return given;
}

int vkep_add(VkepSpares *spares, uint64_t pointer, uint64_t bytes) {
  enter(spares);
  int room = spares->count < sizeof spares->blocks / sizeof *spares->blocks && spares->free_bytes + bytes <= spares->most &&
             spare(spares, pointer) == NULL;
  if (room) {
    VkepSpare *block = &spares->blocks[spares->count++];
    block->pointer = pointer;
    block->bytes = bytes;
    block->turn = 0;
    turn(spares, block);
  }
  leave(spares);
  return room;
}

size_t vkep_drain(VkepSpares *spares, uint64_t *pointers) {
  size_t drained = 0;
  enter(spares);
  for (size_t i = 0; i < spares->count;) {
    if (spares->blocks[i].turn % 2) {
      pointers[drained++] = spares->blocks[i].pointer;
      spares->blocks[i] = spares->blocks[--spares->count];
    } else {
      ++i;
    }
  }
  spares->free_bytes = spares->free_count = 0;
  leave(spares);
  return drained;
}

int64_t vkep_turn(VkepSpares *spares, uint64_t pointer) {
  enter(spares);
  VkepSpare *block = spare(spares, pointer);
  int64_t found = block == NULL ? -1 : (int64_t)block->turn;
  leave(spares);
  return found;
}

static void *taken(const VkepAllocator *allocator, size_t bytes) {
  return allocator->spares == NULL || bytes == 0 ? NULL : (void *)(uintptr_t)vkep_take(allocator->spares, bytes);
}

void *vkep_alloc(OrtAllocator *allocator, size_t bytes) {
  VkepAllocator *mine = (VkepAllocator *)allocator;
  void *pointer = taken(mine, bytes);
  return pointer != NULL ? pointer : mine->alloc(allocator, bytes);
}

void *vkep_alloc_on_stream(OrtAllocator *allocator, size_t bytes, OrtSyncStream *stream) {
  VkepAllocator *mine = (VkepAllocator *)allocator;
  void *pointer = taken(mine, bytes);
  return pointer != NULL ? pointer : mine->alloc_on_stream(allocator, bytes, stream);
}

void vkep_free(OrtAllocator *allocator, void *pointer) {
  VkepAllocator *mine = (VkepAllocator *)allocator;
  if (mine->spares == NULL || vkep_give(mine->spares, (uint64_t)(uintptr_t)pointer) != 1) mine->free(allocator, pointer);
}

static uint64_t address(const VkepDomain *domain, const VkepTensor *tensor) {
  uint64_t pointer = (uint64_t)(uintptr_t)tensor->data, top = domain->domain << domain->shift;
  uint64_t at = pointer - top;
  return tensor->on_device && pointer >= top && at >> domain->shift == 0 && at % domain->alignment == 0 ? at : 0;
}

int64_t vkep_gather(const OrtApi *api, const OrtEpApi *ep_api, const OrtKernelContext *context, size_t count,
                    const size_t *which, const VkepDomain *domain, VkepTensor *out, uint64_t *addresses,
                    int64_t *signature, OrtStatus **status) {
  int64_t *at = signature;
  for (size_t i = 0; i < count; ++i) {
    const OrtValue *value = NULL;
    memset(&out[i], 0, sizeof out[i]);
    addresses[i] = 0;
    *status = api->KernelContext_GetInput(context, which[i], &value);
    if (*status != NULL) return -1;
    if (value != NULL) {
      *status = describe(api, ep_api, value, &out[i]);
      if (*status != NULL) return -1;
      addresses[i] = address(domain, &out[i]);
    }
    if (out[i].rank > 16) {
      *status = api->CreateStatus(2, "vkep: an input has more than 16 dimensions");
      return -1;
    }
    *at++ = out[i].type;
    *at++ = (int64_t)out[i].rank;
    if (out[i].rank) memcpy(at, out[i].dims, out[i].rank * sizeof *at);
    at += out[i].rank;
  }
  *status = NULL;
  return at - signature;
}

OrtStatus *vkep_output(const OrtApi *api, const OrtEpApi *ep_api, OrtKernelContext *context, size_t index,
                       const int64_t *dims, size_t rank, VkepTensor *out) {
  OrtValue *value = NULL;
  OrtStatus *status = api->KernelContext_GetOutput(context, index, dims, rank, &value);
  memset(out, 0, sizeof *out);
  if (status != NULL || value == NULL) return status;
  return describe(api, ep_api, value, out);
}

OrtStatus *vkep_outputs(const OrtApi *api, const OrtEpApi *ep_api, OrtKernelContext *context, size_t count,
                        const size_t *which, const VkepDomain *domain, const int64_t *dims, const size_t *ranks,
                        uint64_t *addresses) {
  for (size_t i = 0; i < count; dims += ranks[i++]) {
    VkepTensor made;
    OrtStatus *status = vkep_output(api, ep_api, context, which[i], dims, ranks[i], &made);
    if (status != NULL) return status;
    addresses[i] = address(domain, &made);
  }
  return NULL;
}

static int is_ours(const VkepTransfer *mine, const OrtMemoryDevice *device) {
  int memory = mine->ep_api->MemoryDevice_GetMemoryType(device); /* the default, or host-accessible */
  if (mine->ep_api->MemoryDevice_GetDeviceType(device) != 1 || (memory != 0 && memory != 5)) return 0;
  uint32_t vendor = mine->ep_api->MemoryDevice_GetVendorId(device);
  for (size_t i = 0; i < mine->count; ++i)
    if (mine->vendors[i] == vendor) return 1;
  return 0;
}

static int is_host(const VkepTransfer *mine, const OrtMemoryDevice *device) {
  return mine->ep_api->MemoryDevice_GetDeviceType(device) == 0 || mine->ep_api->MemoryDevice_GetMemoryType(device) == 5;
}

_Bool vkep_can_copy(const OrtDataTransferImpl *transfer, const OrtMemoryDevice *source, const OrtMemoryDevice *target) {
  const VkepTransfer *mine = (const VkepTransfer *)transfer;
  if (!is_ours(mine, source) && !is_ours(mine, target)) return 0; /* vkep's pinned memory is its own, and the host's */
  return (is_host(mine, source) || is_ours(mine, source)) && (is_host(mine, target) || is_ours(mine, target));
}

#ifndef START_PYTHON /* embed.c has one */
#define START_PYTHON(base)
#endif
/* A stream of a session: the work goes to the one that Python implements. */
typedef struct VkepStream {
  OrtSyncStreamImpl impl;
  OrtSyncStreamImpl *worker;
  void *handle;
} VkepStream;

static void stream_release(OrtSyncStreamImpl *stream) { free(stream); }
static void *stream_handle(OrtSyncStreamImpl *stream) { return ((VkepStream *)stream)->handle; }
static OrtStatus *stream_notification(OrtSyncStreamImpl *stream, OrtSyncNotificationImpl **out) {
  OrtSyncStreamImpl *worker = ((VkepStream *)stream)->worker;
  return worker->CreateNotification(worker, out);
}
static OrtStatus *stream_flush(OrtSyncStreamImpl *stream) {
  OrtSyncStreamImpl *worker = ((VkepStream *)stream)->worker;
  return worker->Flush(worker);
}
static OrtStatus *stream_run_end(OrtSyncStreamImpl *stream) {
  OrtSyncStreamImpl *worker = ((VkepStream *)stream)->worker;
  return worker->OnSessionRunEnd(worker);
}

OrtStatus *vkep_ep_stream(OrtEp *ep, const OrtMemoryDevice *device, OrtSyncStreamImpl **out) {
  VkepEp *mine = (VkepEp *)ep;
  *out = NULL;
  if (mine->ep_api->MemoryDevice_GetMemoryType(device) != 0) return NULL; /* host-accessible memory has no stream */
  VkepStream *made = calloc(1, sizeof *made);
  if (made == NULL) return mine->api->CreateStatus(1, "vkep: no memory for a stream");
  made->impl.ort_version_supported = mine->stream->ort_version_supported;
  made->impl.Release = stream_release;
  made->impl.GetHandle = stream_handle;
  made->impl.CreateNotification = stream_notification;
  made->impl.Flush = stream_flush;
  made->impl.OnSessionRunEnd = stream_run_end;
  made->worker = mine->stream;
  made->handle = mine->handle;
  *out = &made->impl;
  return NULL;
}

const OrtSyncStreamImpl *vkep_working_stream(const OrtSyncStreamImpl *stream) {
  return stream != NULL && stream->Release == stream_release ? ((const VkepStream *)stream)->worker : stream;
}

/* since Python has ended: what creates statuses */
static const OrtApi *after_end;

void vkep_end(const OrtApi *api) { after_end = api; }
void *vkep_nothing(void) { return NULL; }
OrtStatus *vkep_ended(void) { return after_end->CreateStatus(1, "vkep: Python has ended"); }

#define EXPORTED __attribute__((visibility("default")))

EXPORTED OrtStatus *CreateEpFactories(const char *name, const OrtApiBase *base, const OrtLogger *logger,
                                      OrtEpFactory **factories, size_t room, size_t *made) {
  *made = 0;
  if (after_end != NULL) return vkep_ended();
  START_PYTHON(base);
  OrtStatus *status = vkep_CreateEpFactories(name, base, logger, factories, room, made);
  if (status == NULL && *made == 0) /* cffi has no other way to say that a callback is not there */
    return base->GetApi(VKEP_API_LEVEL)->CreateStatus(1, "vkep: the callbacks are not in place: see standard error");
  return status;
}

/* What ONNX Runtime asks of a library of custom operators: see python_sessions.py. */
EXPORTED OrtStatus *RegisterCustomOps(OrtSessionOptions *options, const OrtApiBase *base) {
  START_PYTHON(base);
  return vkep_RegisterCustomOps(options, base);
}

EXPORTED OrtStatus *ReleaseEpFactory(OrtEpFactory *factory) {
  return after_end != NULL ? NULL : vkep_ReleaseEpFactory(factory);
}
