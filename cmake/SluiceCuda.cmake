# The CUDA language, its flags and its architectures. Included before any target exists: an
# architecture list that is set later never reaches the targets.
#
# What a binary carries, and why:
#   75-virtual  PTX for Turing, the oldest GPU that the portable variant runs on (JIT at first use)
#   80          machine code for Ampere and Ada (8.x), and PTX that GPUs newer than Hopper JIT
#   90a-real    machine code for Hopper with wgmma and setmaxnreg; has no forward-compatible PTX
# and what SLUICE_CUDA_FURTHER adds: the wheel has all, a build for one GPU compiles faster without.
set(SLUICE_CUDA_FURTHER "" CACHE STRING
  "More compute capabilities to compile machine code for, such as 86;89;100;120")
list(TRANSFORM SLUICE_CUDA_FURTHER APPEND -real OUTPUT_VARIABLE sluice_cuda_further)
if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 75-virtual 80 90a-real ${sluice_cuda_further})
endif()
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)  # the driver is then the only CUDA file a user needs
set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
enable_language(CUDA)
find_package(CUDAToolkit 12.4 REQUIRED)  # the oldest that has compiled all of it

option(SLUICE_CUDA_DEBUG "Check kernels while they run: device assertions, barrier watchdogs, a sync after each launch" OFF)

# A target's CUDA_STANDARD follows its CXX_STANDARD, and CMake 3.25 does not know nvcc's flag for 20.
foreach(kind STANDARD EXTENSION)
  if(NOT CMAKE_CUDA20_${kind}_COMPILE_OPTION)
    set(CMAKE_CUDA20_${kind}_COMPILE_OPTION -std=c++20)
  endif()
endforeach()
# NDEBUG in every configuration: ptxas serialises wgmma around an assert (warning C7510).
target_compile_options(sluice_options INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:-DNDEBUG;--expt-relaxed-constexpr;-Xfatbin=-compress-all>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra,-Wshadow,-fno-math-errno>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-ffile-prefix-map=${PROJECT_SOURCE_DIR}/=>)
if(SLUICE_CUDA_DEBUG)
  target_compile_definitions(sluice_options INTERFACE SLUICE_CUDA_DEBUG=1)
endif()
