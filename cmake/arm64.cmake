# Cross-building for 64-bit ARM with Debian's compilers (g++-aarch64-linux-gnu): the preset arm64, `./dev dist --arch arm64`.
# Header-only libraries are this machine's: their headers are in /usr/include, their CMake files in its own folder of libraries.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
list(APPEND CMAKE_PREFIX_PATH /usr/lib/x86_64-linux-gnu/cmake /usr/share/cmake)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64)
