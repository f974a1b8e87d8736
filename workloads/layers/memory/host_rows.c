/* Gathers and scatters rows of tables in host memory: the compiled half of host_rows.py.

   A row that is read at random comes from memory some 100 ns after it is asked for. So each thread asks
   for rows ahead of the one that it copies (software prefetch), which numpy does not. What it writes
   goes past the caches (non-temporal stores): an ordinary store first reads the line that it is
   about to replace, a third of all traffic, and nobody reads these lines again soon. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

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

/* Whether rows are whole cache lines, which may be written without being read. */
static int streams(const Pair *pair)
{
#ifdef __SSE2__
    return pair->row_bytes % CACHE_LINE == 0 && (uintptr_t)pair->table % CACHE_LINE == 0 &&
           (uintptr_t)pair->block % CACHE_LINE == 0;
#else
    return 0;
#endif
}

/* Copy whole cache lines past the caches. */
static void stream(char *to, const char *from, int64_t n_bytes)
{
#ifdef __SSE2__
    for (int64_t byte = 0; byte < n_bytes; byte += sizeof(__m128i))
        _mm_stream_si128((__m128i *)(to + byte), _mm_loadu_si128((const __m128i *)(from + byte)));
#else
    memcpy(to, from, n_bytes);
#endif
}

/* Such stores are in no order with others: let all of them be seen before the thread ends. */
static void finish_streams(void)
{
#ifdef __SSE2__
    _mm_sfence();
#endif
}

static void *copy_part(void *argument)
{
    Part *part = argument;
    for (int64_t number = 0; number < part->n_pairs && !part->outside; number++) {
        Pair pair = part->pairs[number];
        int streamed = streams(&pair);
        for (int64_t place = part->start; place < part->end; place++) {
            int64_t id = id_at(part, place);
            if (id < 0 || id >= part->n_rows) {
                part->outside = 1;
                break;
            }
            if (place + AHEAD < part->end && !(streamed && part->scatters))
                prefetch(pair.table + id_at(part, place + AHEAD) * pair.row_bytes, pair.row_bytes,
                         part->scatters);
            char *row = pair.table + id * pair.row_bytes;
            char *item = pair.block + place * pair.row_bytes;
            char *to = part->scatters ? row : item, *from = part->scatters ? item : row;
            if (streamed)
                stream(to, from, pair.row_bytes);
            else
                memcpy(to, from, pair.row_bytes);
        }
    }
    finish_streams();
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
