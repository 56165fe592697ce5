/* The floor: how fast this machine can decode the integers of a SQLite table, straight from the pages of the file.
 *
 * Nothing is checked that a reader of foreign files must check; it is a yardstick, not a reader.
 * cc -O3 -shared -fPIC floor.c -o floor.so
 */
#include <stdint.h>
#include <string.h>

enum { LEAF = 13, INTERIOR = 5, FILE_HEADER = 100 };

static uint32_t big16(const uint8_t *p) { return (uint32_t)p[0] << 8 | p[1]; }
static uint32_t big32(const uint8_t *p) { return big16(p) << 16 | big16(p + 2); }

static const uint8_t *varint(const uint8_t *p, uint64_t *value) {
    uint64_t v = 0;
    for (int i = 0; i < 8; i++) {
        v = v << 7 | (*p & 0x7f);
        if (!(*p++ & 0x80)) { *value = v; return p; }
    }
    *value = v << 8 | *p++;
    return p;
}

static const uint8_t *page_header(const uint8_t *file, uint32_t page_size, uint32_t page) {
    return file + (uint64_t)(page - 1) * page_size + (page == 1 ? FILE_HEADER : 0);
}

/* Leaf pages of the table rooted at `root`, in order; how many there are (only the first `room` are written). */
int64_t list_leaves(const uint8_t *file, uint32_t page_size, uint32_t root, uint32_t *leaves, int64_t room, int64_t n) {
    const uint8_t *header = page_header(file, page_size, root);
    if (header[0] == LEAF) {
        if (n < room) leaves[n] = root;
        return n + 1;
    }
    if (header[0] != INTERIOR) return n;
    const uint8_t *page = file + (uint64_t)(root - 1) * page_size;
    uint32_t cells = big16(header + 3);
    for (uint32_t i = 0; i < cells; i++)
        n = list_leaves(file, page_size, big32(page + big16(header + 12 + 2 * i)), leaves, room, n);
    return list_leaves(file, page_size, big32(header + 8), leaves, room, n);
}

/* Rows on each leaf. */
void count_rows(const uint8_t *file, uint32_t page_size, const uint32_t *leaves, int64_t n, int64_t *rows) {
    for (int64_t i = 0; i < n; i++) rows[i] = big16(page_header(file, page_size, leaves[i]) + 3);
}

static uint64_t cell_bytes(uint64_t type) {
    static const uint8_t bytes[12] = {0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0};
    return type < 12 ? bytes[type] : (type - 12) / 2;
}

static int64_t integer(const uint8_t *p, uint64_t type) {
    if (type == 9) return 1;
    uint64_t bytes = cell_bytes(type), v = bytes && (p[0] & 0x80) ? ~0ull : 0;
    for (uint64_t i = 0; i < bytes; i++) v = v << 8 | p[i];
    return (int64_t)v;
}

/* Decode the columns `wanted` (ascending numbers) of the rows on `n` leaves into out[] and known[], from `row` on.
 * A cell that is no integer, or whose row goes on elsewhere, becomes unknown. */
void decode(const uint8_t *file, uint32_t page_size, const uint32_t *leaves, int64_t n, const int32_t *wanted,
            int32_t columns, int64_t **out, uint8_t **known, int64_t row) {
    for (int64_t i = 0; i < n; i++) {
        const uint8_t *page = file + (uint64_t)(leaves[i] - 1) * page_size;
        const uint8_t *header = page_header(file, page_size, leaves[i]), *page_end = page + page_size;
        uint32_t cells = big16(header + 3);
        for (uint32_t c = 0; c < cells; c++, row++) {
            uint64_t size, rowid, head, type;
            const uint8_t *p = varint(varint(page + big16(header + 8 + 2 * c), &size), &rowid);
            const uint8_t *types = varint(p, &head), *types_end = p + head, *data = types_end;
            int32_t column = 0, next = 0;
            while (next < columns) {
                if (types >= types_end) { known[next][row] = 0; out[next++][row] = 0; continue; }
                types = varint(types, &type);
                if (column++ == wanted[next]) {
                    int whole = data + cell_bytes(type) <= page_end;
                    int ok = whole && ((type >= 1 && type <= 6) || type == 8 || type == 9);
                    known[next][row] = (uint8_t)ok;
                    out[next++][row] = ok ? integer(data, type) : 0;
                }
                data += cell_bytes(type);
            }
        }
    }
}
