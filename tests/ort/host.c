/* A program that is not Python: registers vkep's library with ONNX Runtime, runs a model on Vulkan, and prints the results.
 *
 *   host libonnxruntime.so libvkep_ort.so model.onnx runs
 *
 * The model takes one float input "x" of shape [2,3], fed with 0 to 5, and gives one output "y" of the same shape. Places of
 * functions in ONNX Runtime's table as in the public header, level 29.
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *Status;
typedef struct {
  void **(*GetApi)(uint32_t);
  const char *(*GetVersionString)(void);
} Base;

static void **api;
#define FN(place, result, ...) ((result(*)(__VA_ARGS__))api[place])

static void check(Status status, const char *what) {
  if (status == NULL) return;
  fprintf(stderr, "%s: %s\n", what, FN(2, const char *, Status)(status));
  FN(93, void, Status)(status);
  exit(1);
}

static void *session, *input;

static void *run(void *count) {
  const char *names[] = {"x"}, *outputs[] = {"y"};
  void *inputs[] = {input};
  float *result = NULL;
  for (long i = 0; i < (long)count; ++i) {
    void *output = NULL;
    check(FN(9, Status, void *, void *, const char **, void **, size_t, const char **, size_t, void **)(
              session, NULL, names, inputs, 1, outputs, 1, &output),
          "Run");
    check(FN(51, Status, void *, void **)(output, (void **)&result), "GetTensorMutableData");
    if (i + 1 == (long)count)
      printf("%g %g %g %g %g %g\n", result[0], result[1], result[2], result[3], result[4], result[5]);
    FN(96, void, void *)(output);
  }
  return NULL;
}

static void register_and_run(void *env, char **argv) {
  void *options = NULL, *memory = NULL;
  check(FN(301, Status, void *, const char *, const char *)(env, "vkep", argv[2]), "RegisterExecutionProviderLibrary");

  void **devices = NULL, *mine = NULL;
  size_t count = 0;
  check(FN(303, Status, void *, void ***, size_t *)(env, &devices, &count), "GetEpDevices");
  for (size_t i = 0; i < count && mine == NULL; ++i)
    if (strcmp(FN(312, const char *, void *)(devices[i]), "VulkanExecutionProvider") == 0) mine = devices[i];
  if (mine == NULL) check(FN(0, Status, int, const char *)(1, "no Vulkan device"), "GetEpDevices");

  check(FN(10, Status, void **)(&options), "CreateSessionOptions");
  check(FN(130, Status, void *, const char *, const char *)(options, "session.disable_cpu_ep_fallback", "1"),
        "AddSessionConfigEntry");
  check(FN(304, Status, void *, void *, void **, size_t, const char **, const char **, size_t)(options, env, &mine, 1,
                                                                                               NULL, NULL, 0),
        "SessionOptionsAppendExecutionProvider_V2");
  check(FN(7, Status, void *, const char *, void *, void **)(env, argv[3], options, &session), "CreateSession");

  float data[6] = {0, 1, 2, 3, 4, 5};
  int64_t shape[2] = {2, 3};
  check(FN(69, Status, int, int, void **)(0, 0, &memory), "CreateCpuMemoryInfo");
  check(FN(49, Status, void *, void *, size_t, const int64_t *, size_t, int, void **)(memory, data, sizeof data, shape, 2,
                                                                                      1, &input),
        "CreateTensorWithDataAsOrtValue");
  run((void *)atol(argv[4]));
  pthread_t threads[4]; /* none of them known to Python before */
  for (int i = 0; i < 4; ++i) pthread_create(&threads[i], NULL, run, (void *)atol(argv[4]));
  for (int i = 0; i < 4; ++i) pthread_join(threads[i], NULL);

  FN(96, void, void *)(input);
  FN(94, void, void *)(memory);
  FN(95, void, void *)(session);
  FN(100, void, void *)(options);
  check(FN(302, Status, void *, const char *)(env, "vkep"), "UnregisterExecutionProviderLibrary");
}

int main(int argc, char **argv) {
  if (argc != 5) return 2;
  void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
  if (library == NULL) return fprintf(stderr, "%s\n", dlerror()), 1;
  Base *(*base)(void) = (Base * (*)(void)) dlsym(library, "OrtGetApiBase");
  api = base()->GetApi(29);
  if (api == NULL) return fprintf(stderr, "ONNX Runtime %s has no level 29\n", base()->GetVersionString()), 1;

  void *env = NULL;
  check(FN(3, Status, int, const char *, void **)(3, "host", &env), "CreateEnv");
  for (int round = 0; round < 2; ++round) register_and_run(env, argv); /* also again, after it was unregistered */
  FN(92, void, void *)(env);
  printf("done\n");
  return 0;
}
