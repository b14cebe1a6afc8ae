# Target ion_models: files, weights, the decoder and its runner. Wants ion_kernels (kernels/kernels.cmake) first;
# of core/ it needs the header of the seam alone.
set(ION_MODELS_DIR ${CMAKE_CURRENT_LIST_DIR})

# Source lists are explicit: a file that is not named here is not part of the engine.
set(ION_MODELS_SOURCES
  control_group.cpp cpu_decoder.cpp cpu_runner.cpp cuda_library.cpp cuda_model.cpp cuda_runner.cpp cuda_step.cpp cuda_weights.cpp
  e4m3.cpp file_map.cpp gguf.cpp json.cpp kv_store.cpp memory.cpp model.cpp model_config.cpp model_files.cpp
  page_guard.cpp random_model.cpp read_bandwidth.cpp runner_options.cpp safetensors.cpp tensor.cpp weight_error.cpp weights.cpp)
list(TRANSFORM ION_MODELS_SOURCES PREPEND ${ION_MODELS_DIR}/)

add_library(ion_models STATIC ${ION_MODELS_SOURCES})
target_compile_features(ion_models PUBLIC cxx_std_20)
target_compile_options(ion_models PRIVATE -Wall -Wextra -Wno-missing-field-initializers)
target_include_directories(ion_models PUBLIC ${ION_MODELS_DIR}/..)
target_link_libraries(ion_models PUBLIC ion_kernels ${CMAKE_DL_LIBS})
set_target_properties(ion_models PROPERTIES POSITION_INDEPENDENT_CODE ON)
