/*
 * What inetd starts: sends standard input back on standard output and, behind its end,
 * the CRC-32 of all bytes (that of zlib), 4 bytes, highest first. Linked statically, so
 * that it is a program that cannot be preloaded.
 */
#include <stdint.h>
#include <unistd.h>

static uint32_t table[256];

static void fill(void) {
    for (uint32_t at = 0; at < 256; at++) {
        uint32_t value = at;
        for (int bit = 0; bit < 8; bit++) value = value & 1 ? 0xedb88320 ^ value >> 1 : value >> 1;
        table[at] = value;
    }
}

static int put(const unsigned char *bytes, size_t length) {
    while (length > 0) {
        ssize_t written = write(1, bytes, length);
        if (written <= 0) return -1;
        bytes += written;
        length -= (size_t)written;
    }
    return 0;
}

int main(void) {
    static unsigned char buffer[65536];
    uint32_t crc = 0xffffffff;
    ssize_t got;
    fill();
    while ((got = read(0, buffer, sizeof buffer)) > 0) {
        for (ssize_t at = 0; at < got; at++) crc = table[(crc ^ buffer[at]) & 255] ^ crc >> 8;
        if (put(buffer, (size_t)got) != 0) return 1;
    }
    if (got < 0) return 1;
    crc = ~crc;
    unsigned char sum[4];
    for (int at = 0; at < 4; at++) sum[at] = (unsigned char)(crc >> (24 - 8 * at));
    return put(sum, sizeof sum) == 0 ? 0 : 1;
}
