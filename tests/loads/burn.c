// A busy loop.
int main(void) {
  for (;;) {
  }
}
