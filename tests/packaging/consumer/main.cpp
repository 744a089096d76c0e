// The smallest program on the C++ library.
#include <iostream>
#include <phalanx/version.h>

int main() { std::cout << "Phalanx " << phalanx::version() << '\n'; }
