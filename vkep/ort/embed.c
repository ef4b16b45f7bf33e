/* The plugin library for programs that are not Python: it starts the interpreter that it was built by. Placed before shim.c. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>

static const char *python_failed = NULL;

/* Extension modules (numpy's, cffi's) look the interpreter's functions up in the global scope, into which a library that was
 * opened locally does not bring its own dependencies. */
static void show_python(void) {
  Dl_info where;
  if (dladdr((void *)&Py_IsInitialized, &where) != 0) dlopen(where.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
}

static void start_python(void) {
  show_python();
  if (Py_IsInitialized()) return; /* the program embeds Python itself */
  PyConfig config;
  PyConfig_InitPythonConfig(&config);
  config.install_signal_handlers = 0; /* they are the program's */
  config.parse_argv = 0;
  PyStatus done = PyConfig_SetBytesString(&config, &config.program_name, VKEP_PYTHON);
  if (!PyStatus_Exception(done)) done = Py_InitializeFromConfig(&config);
  PyConfig_Clear(&config);
  if (PyStatus_Exception(done))
    python_failed = done.err_msg != NULL ? done.err_msg : "no message";
  else
    PyEval_SaveThread(); /* callbacks come from any thread, and take the lock themselves */
}

static OrtStatus *started(const OrtApiBase *base) {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, start_python);
  if (python_failed == NULL) return NULL;
  char text[512];
  snprintf(text, sizeof text, "vkep: the Python interpreter %s does not start: %s", VKEP_PYTHON, python_failed);
  return base->GetApi(VKEP_API_LEVEL)->CreateStatus(1, text);
}

#define START_PYTHON(base) \
  do { \
    OrtStatus *failed = started(base); \
    if (failed != NULL) return failed; \
  } while (0)
