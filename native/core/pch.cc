// Exists so that the precompiled torch header has a target to belong to (see CMakeLists.txt).
