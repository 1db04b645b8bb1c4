// Says whether the loader has mapped a libshunt.
#include <stdio.h>
#include <string.h>

int main(void) {
    char line[4096];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        found |= strstr(line, "/libshunt") != NULL;
    puts(found ? "preloaded" : "not preloaded");
    return maps ? 0 : 1;
}
