// A trace function that interrupts one thread at its n-th point where the interpreter looks for signals (see points.py).
// At such an instruction, it leaves the signal (or exception) to the interpreter, which handles it as it would handle any other.
#include <Python.h>
#include <stdio.h>

static const unsigned char *is_point;  // by the number of an instruction
static long passed, first, second;     // `second` points after the first interrupt follows another one, unless it is 0
static int interrupts, signal_number;  // signal_number 0: raise `exception` in `thread`
static unsigned long thread;
static PyObject *exception;
static char where[2][512];

static void interrupt(PyFrameObject *frame) {
    PyCodeObject *code = PyFrame_GetCode(frame);
    PyObject *file = PyObject_GetAttrString((PyObject *)code, "co_filename");
    PyObject *name = PyObject_GetAttrString((PyObject *)code, "co_qualname");
    if (file && name)
        snprintf(where[interrupts], sizeof where[0], "%s:%d, in %s, instruction %d", PyUnicode_AsUTF8(file),
                 PyFrame_GetLineNumber(frame), PyUnicode_AsUTF8(name), PyFrame_GetLasti(frame));
    Py_XDECREF(file);
    Py_XDECREF(name);
    Py_DECREF(code);
    PyErr_Clear();
    interrupts++;
    if (signal_number)
        PyErr_SetInterruptEx(signal_number);
    else
        PyThreadState_SetAsyncExc(thread, exception);
}

static int trace(PyObject *unused, PyFrameObject *frame, int event, PyObject *argument) {
    if (event == PyTrace_CALL) {  // comes at RESUME: the begin of a function, and where a generator goes on
        PyObject *type, *value, *traceback;
        PyErr_Fetch(&type, &value, &traceback);
        PyObject_SetAttrString((PyObject *)frame, "f_trace_opcodes", Py_True);
        PyObject_SetAttrString((PyObject *)frame, "f_trace_lines", Py_False);
        PyErr_Restore(type, value, traceback);
    } else if (event == PyTrace_OPCODE) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        PyObject *instructions = PyCode_GetCode(code);
        int here = is_point[(unsigned char)PyBytes_AS_STRING(instructions)[PyFrame_GetLasti(frame)]];
        Py_DECREF(instructions);
        Py_DECREF(code);
        if (!here) return 0;
    } else {
        return 0;
    }
    passed++;
    if (passed == first || (second && passed == first + second)) interrupt(frame);
    if (passed >= first + second) PyEval_SetTrace(NULL, NULL);
    return 0;
}

void start(const unsigned char *points, long at, long then, int number, unsigned long raised_in, PyObject *raised) {
    is_point = points;
    first = at;
    second = then;
    signal_number = number;
    thread = raised_in;
    exception = raised;
    passed = interrupts = 0;
    where[0][0] = where[1][0] = 0;
    PyEval_SetTrace(trace, NULL);
}

int stop(void) {
    PyEval_SetTrace(NULL, NULL);
    return interrupts;
}

const char *place(int k) { return where[k]; }
