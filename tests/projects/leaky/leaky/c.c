#include <Python.h>

static PyObject *built(PyObject *self, PyObject *unused) { return PyUnicode_FromString(BUILT); }

static PyMethodDef methods[] = {{"built", built, METH_NOARGS, NULL}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "_c", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__c(void) { return PyModule_Create(&module); }
