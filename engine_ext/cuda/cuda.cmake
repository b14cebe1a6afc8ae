# Target ion_cuda: libion_cuda.so, everything CUDA behind the C interface of ion_cuda.h. Its own library, opened at
# run time, so that the engine starts where there is no driver. IONROUTER_CUDA, as a CMake variable or from the
# environment:
#   auto  built where both nvcc and a GPU are found (default)
#   on    built, or the configuration fails and says what is missing
#   off   not built
# ION_CUDA_CHECK=ON compiles every source and links nothing: a check for machines without a GPU.
set(ION_CUDA_DIR ${CMAKE_CURRENT_LIST_DIR})

set(ION_CUDA_SOURCES
  cuda/algorithm_trial.cpp cuda/api.cpp cuda/blas_lt.cpp cuda/decoder.cpp cuda/decoder_attention.cpp cuda/decoder_e4m3.cpp cuda/host_tier.cpp cuda/measure.cpp cuda/model.cpp
  cuda/runner.cpp cuda/runner_launch.cpp cuda/step_buffer.cpp cuda/teacher_forced.cpp cuda/upload.cpp
  kernels/cuda/activation.cu kernels/cuda/attention.cu kernels/cuda/attention_codes.cu kernels/cuda/attention_narrow.cu kernels/cuda/attention_ring.cu kernels/cuda/attention_sm90.cu kernels/cuda/box_view.cpp
  kernels/cuda/measure.cu kernels/cuda/norm.cu kernels/cuda/prompt_gemm.cu kernels/cuda/quantise.cu kernels/cuda/rope_kv.cu
  kernels/cuda/sampler.cu kernels/cuda/stream_gemm.cu kernels/cuda/stream_weights.cu kernels/cuda/unpack_kv.cu)
set(ION_CUDA_FLAGS
  --generate-code=arch=compute_80,code=[compute_80,sm_80] --generate-code=arch=compute_90a,code=sm_90a
  -Xcompiler=-Wall,-Wextra)

if(DEFINED IONROUTER_CUDA)
  string(TOLOWER "${IONROUTER_CUDA}" ION_CUDA_MODE)
elseif(NOT "$ENV{IONROUTER_CUDA}" STREQUAL "")
  string(TOLOWER "$ENV{IONROUTER_CUDA}" ION_CUDA_MODE)
else()
  set(ION_CUDA_MODE auto)
endif()
if(NOT ION_CUDA_MODE MATCHES "^(auto|on|off)$")
  message(FATAL_ERROR "IONROUTER_CUDA: '${ION_CUDA_MODE}' is none of auto, on, off")
endif()

# What keeps the library from being built; empty: nothing.
function(ion_cuda_obstacle result)
  find_program(ION_NVCC nvcc HINTS $ENV{CUDACXX} $ENV{CUDA_HOME}/bin /usr/local/cuda/bin)
  find_program(ION_NVIDIA_SMI nvidia-smi)
  set(found "")
  if(NOT ION_NVCC AND NOT EXISTS "$ENV{CUDACXX}")
    set(found "nvcc is not there")
  elseif(ION_CUDA_MODE STREQUAL "auto" AND NOT ION_CUDA_CHECK AND NOT EXISTS /dev/nvidia0 AND NOT ION_NVIDIA_SMI)
    set(found "no GPU is there (IONROUTER_CUDA=on builds it all the same)")
  endif()
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

# cublasLt.h of the toolkit, or of the package nvidia-cublas.
function(ion_find_cublas_header)
  set(packages "")
  foreach(root ${Python_SITELIB} ${Python_SITEARCH})
    file(GLOB found ${root}/nvidia/cu1*/include ${root}/nvidia/cublas/include)
    list(APPEND packages ${found})
  endforeach()
  find_path(ION_CUBLASLT_INCLUDE cublasLt.h
    HINTS ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES} $ENV{CUDA_HOME}/include /usr/local/cuda/include ${packages})
endfunction()

function(ion_add_cuda)
  find_package(Threads REQUIRED)
  ion_find_cublas_header()
  set(sources ${ION_CUDA_SOURCES})
  if(NOT ION_CUBLASLT_INCLUDE)
    if(NOT ION_CUDA_CHECK)
      message(FATAL_ERROR "CUDA: cublasLt.h is not there; it comes with the CUDA toolkit, or with "
        "`pip install 'nvidia-cublas>=13,<14'`")
    endif()
    message(STATUS "CUDA: cublasLt.h is not there, so cuda/blas_lt.cpp and cuda/algorithm_trial.cpp are not checked")
    list(REMOVE_ITEM sources cuda/algorithm_trial.cpp cuda/blas_lt.cpp)
  endif()
  list(TRANSFORM sources PREPEND ${ION_CUDA_DIR}/../)
  if(ION_CUDA_CHECK)
    add_library(ion_cuda OBJECT ${sources})
  else()
    add_library(ion_cuda SHARED ${sources})
    target_link_libraries(ion_cuda PRIVATE Threads::Threads ${CMAKE_DL_LIBS})
    target_link_options(ion_cuda PRIVATE -Wl,--exclude-libs,ALL -Wl,--no-undefined)
    install(TARGETS ion_cuda LIBRARY DESTINATION ionrouter/engine)
  endif()
  target_include_directories(ion_cuda PRIVATE ${ION_CUDA_DIR}/..)
  target_include_directories(ion_cuda SYSTEM PRIVATE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
  if(ION_CUBLASLT_INCLUDE)
    target_include_directories(ion_cuda SYSTEM PRIVATE ${ION_CUBLASLT_INCLUDE})
  endif()
  target_compile_options(ion_cuda PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:${ION_CUDA_FLAGS}>"
    "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra>")
  set_target_properties(ion_cuda PROPERTIES
    CUDA_ARCHITECTURES OFF CUDA_RUNTIME_LIBRARY Static CUDA_STANDARD 20 CUDA_STANDARD_REQUIRED ON
    CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON POSITION_INDEPENDENT_CODE ON
    CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden)
endfunction()

if(ION_CUDA_MODE STREQUAL "off")
  message(STATUS "CUDA: off")
else()
  ion_cuda_obstacle(ION_CUDA_OBSTACLE)
  if(ION_CUDA_OBSTACLE AND ION_CUDA_MODE STREQUAL "on")
    message(FATAL_ERROR "IONROUTER_CUDA=on: ${ION_CUDA_OBSTACLE}")
  elseif(ION_CUDA_OBSTACLE)
    message(STATUS "CUDA: off, ${ION_CUDA_OBSTACLE}")
  else()
    if(NOT ION_CUDA_CHECK)
      message(STATUS "CUDA: libion_cuda.so is built")
    endif()
    if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES 80)  # for the compiler's own test; ours are in ION_CUDA_FLAGS
    endif()
    enable_language(CUDA)
    ion_add_cuda()
  endif()
endif()
