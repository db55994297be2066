# SPDX-License-Identifier: Apache-2.0
# Where built and installed programs find shared libraries. CMake pads the run path of the build tree with empty entries, for the one that it
# writes at install, and the loader takes an empty entry for the working directory. So both trees have one path: beside the program, where
# the libraries are installed, and where those from outside were linked.
if(NOT DEFINED CMAKE_INSTALL_RPATH AND BUILD_SHARED_LIBS)
  set(CMAKE_INSTALL_RPATH "$ORIGIN;$ORIGIN/../${CMAKE_INSTALL_LIBDIR}")
endif()
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
set(CMAKE_INSTALL_RPATH_USE_LINK_PATH ON)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/${CMAKE_INSTALL_LIBDIR})
