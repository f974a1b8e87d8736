/* Gathers and scatters rows of tables in host memory: the compiled half of host_rows.py.

   A row that is read at random comes from memory some 100 ns after it is asked for. So each thread asks
   for rows ahead of the one that it copies (software prefetch), which numpy does not. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>

enum {
    AHEAD = 16,         /* rows */
    CACHE_LINE = 64,    /* bytes */
    PREFETCHED = 512,   /* bytes of a row at most: the processor itself foresees the rest */
    MOST_THREADS = 64,
};

typedef struct {
    char *table, *block;
    int64_t row_bytes;
} Pair;

typedef struct {
    const Pair *pairs;
    int64_t n_pairs, n_rows, start, end;
    const void *ids;
    int id_bytes, scatters, outside;
} Part;

static int64_t id_at(const Part *part, int64_t place)
{
    return part->id_bytes == 4 ? ((const int32_t *)part->ids)[place]
                               : ((const int64_t *)part->ids)[place];
}

static void prefetch(const char *row, int64_t row_bytes, int writes)
{
    int64_t end = row_bytes < PREFETCHED ? row_bytes : PREFETCHED;
    for (int64_t byte = 0; byte < end; byte += CACHE_LINE) {
        if (writes)
            __builtin_prefetch(row + byte, 1, 0);
        else
            __builtin_prefetch(row + byte, 0, 0);
    }
}

static void *copy_part(void *argument)
{
    Part *part = argument;
    for (int64_t number = 0; number < part->n_pairs; number++) {
        Pair pair = part->pairs[number];
        for (int64_t place = part->start; place < part->end; place++) {
            int64_t id = id_at(part, place);
            if (id < 0 || id >= part->n_rows) {
                part->outside = 1;
                return NULL;
            }
            if (place + AHEAD < part->end)
                prefetch(pair.table + id_at(part, place + AHEAD) * pair.row_bytes, pair.row_bytes,
                         part->scatters);
            char *row = pair.table + id * pair.row_bytes;
            char *item = pair.block + place * pair.row_bytes;
            if (part->scatters)
                memcpy(row, item, pair.row_bytes);
            else
                memcpy(item, row, pair.row_bytes);
        }
    }
    return NULL;
}

/* copy_rows(pairs, n_rows, ids, id_bytes, n_ids, n_threads, scatters): see host_rows.py. */
static PyObject *copy_rows(PyObject *self, PyObject *arguments)
{
    Py_buffer pairs, ids;
    Py_ssize_t n_rows, n_ids;
    int id_bytes, n_threads, scatters;
    if (!PyArg_ParseTuple(arguments, "y*ny*inip", &pairs, &n_rows, &ids, &id_bytes, &n_ids,
                          &n_threads, &scatters))
        return NULL;
    n_threads = n_threads < 1 ? 1 : n_threads > MOST_THREADS ? MOST_THREADS : n_threads;
    Part parts[MOST_THREADS];
    pthread_t threads[MOST_THREADS];
    int started[MOST_THREADS], outside = 0;
    Py_BEGIN_ALLOW_THREADS;
    for (int t = 0; t < n_threads; t++) {
        parts[t] = (Part){pairs.buf, pairs.len / (Py_ssize_t)sizeof(Pair), n_rows,
                          n_ids * t / n_threads, n_ids * (t + 1) / n_threads,
                          ids.buf, id_bytes, scatters, 0};
        /* The last part is the caller's, and so is each whose thread cannot be had. */
        started[t] = t + 1 < n_threads && !pthread_create(&threads[t], NULL, copy_part, &parts[t]);
        if (!started[t])
            copy_part(&parts[t]);
    }
    for (int t = 0; t < n_threads; t++) {
        if (started[t])
            pthread_join(threads[t], NULL);
        outside |= parts[t].outside;
    }
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&pairs);
    PyBuffer_Release(&ids);
    if (outside) {
        PyErr_SetString(PyExc_IndexError, "an id is out of bounds for the table's rows");
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"copy_rows", copy_rows, METH_VARARGS, "Gather or scatter rows with threads."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "host_rows", NULL, -1, methods};

PyMODINIT_FUNC PyInit_host_rows(void) { return PyModule_Create(&module); }
