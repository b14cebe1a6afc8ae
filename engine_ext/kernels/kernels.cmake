# Target ion_kernels: the CPU kernels, one file per instruction set with its own flags, chosen at run time.
# Include it from any project: include(engine_ext/kernels/kernels.cmake).
find_package(Threads REQUIRED)

set(ION_KERNELS_DIR ${CMAKE_CURRENT_LIST_DIR})

# Source lists are explicit: a file that is not named here is not part of the engine.
set(ION_KERNELS_SOURCES
  attention.cpp attention_reference.cpp dispatch.cpp dtype.cpp matmul.cpp matmul_reference.cpp pack.cpp
  philox.cpp rope.cpp rows.cpp rows_reference.cpp sampler.cpp selection.cpp thread_pool.cpp token_counts.cpp)
set(ION_AVX2_SOURCES attention_avx2.cpp matmul_float_avx2.cpp matmul_int8_avx2.cpp rows_avx2.cpp)
set(ION_AVX512VNNI_SOURCES attention_avx512vnni.cpp matmul_int8_avx512vnni.cpp rows_avx512vnni.cpp)
list(TRANSFORM ION_KERNELS_SOURCES PREPEND ${ION_KERNELS_DIR}/cpu/)
list(TRANSFORM ION_AVX2_SOURCES PREPEND ${ION_KERNELS_DIR}/cpu/)
list(TRANSFORM ION_AVX512VNNI_SOURCES PREPEND ${ION_KERNELS_DIR}/cpu/)

# Contraction off: a fused multiply-add stands only where the source says so, or bits would follow the flags.
# A switch over types that forgets one does not build.
set(ION_KERNELS_FLAGS -O3 -ffp-contract=off -fno-math-errno -Wall -Wextra -Werror=switch)
set(ION_AVX2_FLAGS -mavx2 -mfma -mf16c)
set(ION_AVX512VNNI_FLAGS -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512vnni)

if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64|amd64")
  set_source_files_properties(${ION_AVX2_SOURCES} PROPERTIES COMPILE_OPTIONS "${ION_AVX2_FLAGS}")
  set_source_files_properties(${ION_AVX512VNNI_SOURCES} PROPERTIES COMPILE_OPTIONS "${ION_AVX512VNNI_FLAGS}")
  list(APPEND ION_KERNELS_SOURCES ${ION_AVX2_SOURCES} ${ION_AVX512VNNI_SOURCES})
  set(ION_KERNELS_DEFINES ION_X86=1)
endif()

add_library(ion_kernels STATIC ${ION_KERNELS_SOURCES})
target_compile_features(ion_kernels PUBLIC cxx_std_20)
target_compile_options(ion_kernels PRIVATE ${ION_KERNELS_FLAGS})
target_compile_definitions(ion_kernels PRIVATE ${ION_KERNELS_DEFINES})
target_include_directories(ion_kernels PUBLIC ${ION_KERNELS_DIR} ${ION_KERNELS_DIR}/..)
target_link_libraries(ion_kernels PUBLIC Threads::Threads)
set_target_properties(ion_kernels PROPERTIES POSITION_INDEPENDENT_CODE ON)
