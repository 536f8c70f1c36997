# Targets of this project. Every library belongs to a layer; a link from one layer to another must be allowed by
# NVSHARE_ALLOWED_<layer> below, otherwise configuring fails. This is where the architecture is enforced.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()
# Everything that is run lands in <build>/bin, everything that is loaded in <build>/lib.
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

find_package(Threads REQUIRED)

set(NVSHARE_ALLOWED_base "")
set(NVSHARE_ALLOWED_loop base)
set(NVSHARE_ALLOWED_protocol base)
set(NVSHARE_ALLOWED_policy "")
set(NVSHARE_ALLOWED_cuda base)
set(NVSHARE_ALLOWED_interposer protocol cuda base)
set(NVSHARE_ALLOWED_scheduler policy protocol cuda loop base)
set(NVSHARE_ALLOWED_kubernetes_settings protocol base)
set(NVSHARE_ALLOWED_kubernetes_devices kubernetes_settings protocol cuda base)
set(NVSHARE_ALLOWED_kubernetes_pods kubernetes_devices kubernetes_settings protocol loop base)
set(NVSHARE_ALLOWED_kubernetes_kubelet kubernetes_pods kubernetes_devices kubernetes_settings protocol base)
set(NVSHARE_ALLOWED_kubernetes_dra kubernetes_pods kubernetes_devices kubernetes_settings protocol cuda loop base)
set(NVSHARE_ALLOWED_slurm protocol base)
set(NVSHARE_ALLOWED_replay policy base)
set(NVSHARE_ALLOWED_cli replay protocol base)

# A program that links this needs no shared library but libc's, and no libc newer than 2.34: it carries its own C++ library and unwinder,
# and of them only what it uses (random_device alone would ask for arc4random, glibc 2.36).
option(NVSHARE_PORTABLE "Build the programs that way, for ./dev dist" OFF)
add_library(nvshare_portable INTERFACE)
target_sources(nvshare_portable INTERFACE ${CMAKE_SOURCE_DIR}/tools/portable/dl_find_object.cc)
target_link_options(nvshare_portable INTERFACE -static-libstdc++ -static-libgcc -Wl,--as-needed -Wl,--gc-sections)

add_library(nvshare_warnings INTERFACE)
target_compile_options(nvshare_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wswitch -Wnon-virtual-dtor -Wold-style-cast -Wcast-qual -Wundef -Wno-missing-field-initializers
  "$<$<NOT:$<BOOL:$<TARGET_PROPERTY:UNITY_BUILD>>>:-Werror;-Wshadow>")

option(NVSHARE_UNITY "Compile several sources at a time, see nvshare_unity; sanitizer builds do it anyway" OFF)
option(NVSHARE_UNITY_TESTS "The same, of tests alone, as in CI" OFF)
set(NVSHARE_UNITY_SOURCES 16 CACHE STRING "How many at a time")

add_library(nvshare_sanitizer INTERFACE)
if(NVSHARE_SANITIZER STREQUAL "address")
  target_compile_options(nvshare_sanitizer INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  target_link_options(nvshare_sanitizer INTERFACE -fsanitize=address,undefined)
  target_compile_definitions(nvshare_sanitizer INTERFACE NVSHARE_SANITIZED=1)
  # Three checks of every pointer that is used (null, misaligned, of another class) take a third of the compile time: eight sources of the
  # scheduler 23.5 instead of 35.3 s. These folders take bytes and the driver's pointers for objects, and have them. The others do that with
  # socket addresses, inotify's events and curl's callbacks alone; null pointers and objects that are gone AddressSanitizer sees as well.
  set(folders src/base src/cuda src/interposer src/interposer/symbols src/interposer/turn src/protocol test/e2e test/fuzz test/regressions test/simgpu)
  list(TRANSFORM folders PREPEND ${CMAKE_SOURCE_DIR}/)
  target_compile_options(nvshare_sanitizer INTERFACE
    "$<$<NOT:$<IN_LIST:$<TARGET_PROPERTY:SOURCE_DIR>,${folders}>>:-fno-sanitize=null,alignment,vptr>")
elseif(NVSHARE_SANITIZER STREQUAL "thread")
  # A fence orders nothing for the sanitizer to see; the gate also releases and acquires, which it does.
  target_compile_options(nvshare_sanitizer INTERFACE -fsanitize=thread -fno-omit-frame-pointer $<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
  target_link_options(nvshare_sanitizer INTERFACE -fsanitize=thread)
  target_compile_definitions(nvshare_sanitizer INTERFACE NVSHARE_SANITIZED=1)
elseif(NVSHARE_SANITIZER)
  message(FATAL_ERROR "NVSHARE_SANITIZER is '${NVSHARE_SANITIZER}'; it may be empty, 'address' or 'thread'")
endif()

option(NVSHARE_FUZZ "Build the fuzz targets for libFuzzer, everything instrumented for it (needs clang)" OFF)
if(NVSHARE_FUZZ)
  target_compile_options(nvshare_sanitizer INTERFACE -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined)
  target_link_options(nvshare_sanitizer INTERFACE -fsanitize=address,undefined)
  target_compile_definitions(nvshare_sanitizer INTERFACE NVSHARE_SANITIZED=1)
endif()

option(NVSHARE_COVERAGE "Count which lines run of the targets that are named to nvshare_counts_lines, for ./dev coverage" OFF)
if(NVSHARE_COVERAGE)
  add_link_options(--coverage)
endif()

# nvshare_counts_lines(TARGET): everything else is compiled as for a release, which ccache has already; what counts it compiles anew in each folder.
function(nvshare_counts_lines target)
  if(NVSHARE_COVERAGE AND TARGET ${target})
    target_compile_options(${target} PRIVATE -Og --coverage)
  endif()
endfunction()

# nvshare_unity(TARGET [PORTABLE] [COUNTED] [APART sources...]): in a sanitizer build, and in ./dev demo's, the target's sources are compiled 16 (in the demo's 32) at a
# time. Most of what such a build takes is the code of templates (JSON, logging, GoogleTest) that each source would bring along again. Names in unnamed
# namespaces then must differ within a layer (tools/lint.py, names); sources whose names do not, or that define what their neighbours only declare, stay
# APART. Why 16: two times eight of the scheduler's take 38.6 s of a processor under AddressSanitizer, together 29.4 s and 1 GiB of memory. More
# would leave one of two processors idle at the end of a layer. PORTABLE: also in portable builds, where the target is compiled with other options
# than in a release, so that ccache cannot have it. COUNTED: also for ./dev coverage, for the same reason.
# Other builds compile each source by itself; there warnings are errors, and shadowed names are warned of, which neighbours would be here.
# In CI's release build tests are compiled together as well (NVSHARE_UNITY_TESTS): two thirds of what each takes by itself is reading headers.
# What a test lacks that its neighbours include, or a name that it shadows, a developer's build says.
function(nvshare_unity target)
  cmake_parse_arguments(ARG "PORTABLE;COUNTED" "" "APART" ${ARGN})
  set(together ${NVSHARE_UNITY})
  if(NVSHARE_SANITIZER OR (ARG_PORTABLE AND NVSHARE_PORTABLE) OR (ARG_COUNTED AND NVSHARE_COVERAGE)
      OR (NVSHARE_UNITY_TESTS AND target MATCHES "_test$"))
    set(together ON)
  endif()
  if(NOT TARGET ${target} OR NOT together)
    return()
  endif()
  if(NOT NVSHARE_SANITIZER AND target MATCHES "_test$")
    target_compile_options(${target} PRIVATE -Werror)
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE ${NVSHARE_UNITY_SOURCES})
  set_source_files_properties(${ARG_APART} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  # CMake includes the sources by their full paths, and GoogleTest's macros write __FILE__ down: without this ccache would compile all tests
  # anew in a clone that lies elsewhere.
  target_compile_options(${target} PRIVATE -fmacro-prefix-map=${CMAKE_SOURCE_DIR}/=)
endfunction()

# Code that lives inside somebody else's process (libnvshare.so and what it is made of).
set(NVSHARE_GUEST_OPTIONS -fno-exceptions -fno-rtti -fno-threadsafe-statics -fvisibility=hidden
    -fvisibility-inlines-hidden -ffunction-sections -fdata-sections -ftls-model=initial-exec)

# nvshare_layer(LAYER [GUEST] SOURCES ... [LAYERS ...] [LIBRARIES ...])
# A static library nvshare_<LAYER> of one layer. LAYERS are checked against the table above. With GUEST a second build of the
# same sources, nvshare_<LAYER>_guest, is made for libnvshare.so: without exceptions, RTTI or exported symbols.
function(nvshare_layer layer)
  cmake_parse_arguments(ARG "GUEST" "" "SOURCES;LAYERS;LIBRARIES" ${ARGN})
  nvshare_check_layers(${layer} ${ARG_LAYERS})
  set(variants nvshare_${layer})
  if(ARG_GUEST)
    list(APPEND variants nvshare_${layer}_guest)
  endif()
  foreach(target ${variants})
    add_library(${target} STATIC ${ARG_SOURCES})
    set_target_properties(${target} PROPERTIES LINKER_LANGUAGE CXX)
    target_include_directories(${target} PUBLIC ${CMAKE_SOURCE_DIR}/src)
    set(suffix "")
    if(target MATCHES "_guest$")
      target_compile_options(${target} PRIVATE ${NVSHARE_GUEST_OPTIONS})
      set(suffix "_guest")
    endif()
    foreach(other ${ARG_LAYERS})
      target_link_libraries(${target} PUBLIC nvshare_${other}${suffix})
    endforeach()
    target_link_libraries(${target} PUBLIC nvshare_sanitizer Threads::Threads PRIVATE nvshare_warnings)
  endforeach()
  target_link_libraries(nvshare_${layer} PUBLIC ${ARG_LIBRARIES})
endfunction()

function(nvshare_check_layers layer)
  if(NOT DEFINED NVSHARE_ALLOWED_${layer})
    message(FATAL_ERROR "layer '${layer}' is not in cmake/NvshareTargets.cmake")
  endif()
  foreach(other ${ARGN})
    if(NOT other IN_LIST NVSHARE_ALLOWED_${layer})
      message(FATAL_ERROR "layer '${layer}' may not use layer '${other}' (ARCHITECTURE.md, allowed: ${NVSHARE_ALLOWED_${layer}})")
    endif()
  endforeach()
endfunction()

# nvshare_program(NAME LAYER layer SOURCES ... [LIBRARIES ...])
function(nvshare_program name)
  cmake_parse_arguments(ARG "" "LAYER" "SOURCES;LIBRARIES" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(${name} PRIVATE ${ARG_LIBRARIES} nvshare_sanitizer nvshare_warnings Threads::Threads)
  if(NVSHARE_PORTABLE)
    target_link_libraries(${name} PRIVATE nvshare_portable)
  endif()
endfunction()

# nvshare_test(NAME SOURCES ... [LIBRARIES ...] [LABEL label] [TIMEOUT seconds] [SINGLE_THREADED] [ALONE])
# A GoogleTest program; unit tests stand beside the code as NAME_test.cc. SINGLE_THREADED: there is nothing in it for ThreadSanitizer to
# find, so it is left out of that build. ALONE: no other test runs beside one of it, but where a sanitizer makes all of it slow.
function(nvshare_test name)
  if(NOT NVSHARE_BUILD_TESTS AND NOT name IN_LIST NVSHARE_ONLY_TESTS)
    return()
  endif()
  cmake_parse_arguments(ARG "SINGLE_THREADED;ALONE" "TIMEOUT;LABEL" "SOURCES;LIBRARIES" ${ARGN})
  if(ARG_SINGLE_THREADED AND NVSHARE_SANITIZER STREQUAL "thread")
    return()
  endif()
  set(alone "")
  if(ARG_ALONE AND NOT NVSHARE_SANITIZER)
    set(alone RUN_SERIAL ON)
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  if(NOT ARG_LABEL)
    set(ARG_LABEL unit)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  # A test's own code runs once: optimizing it took half of its compile time.
  target_compile_options(${name} PRIVATE $<$<CONFIG:RelWithDebInfo>:-Og>)
  target_include_directories(${name} PRIVATE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/test)
  target_link_libraries(${name} PRIVATE ${ARG_LIBRARIES} GTest::gtest GTest::gtest_main nvshare_sanitizer nvshare_warnings Threads::Threads)
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST PROPERTIES LABELS ${ARG_LABEL} TIMEOUT ${ARG_TIMEOUT} ${alone})
endfunction()
