{
  # Hands over to CMake, the one build description: `node-gyp rebuild` and `prebuildify` make the same
  # binaries as scripts/build-native.mjs, copied to build/Release where those tools look for them.
  "targets": [
    {
      "target_name": "nlac",
      "type": "none",
      "actions": [
        {
          "action_name": "cmake",
          "inputs": ["CMakeLists.txt"],
          "outputs": ["<(PRODUCT_DIR)/nlac.node", "<(PRODUCT_DIR)/nlac_loader.node"],
          "action": ["node", "scripts/build-native.mjs", "--copy-to", "<(PRODUCT_DIR)"],
          "message": "Building nlac with CMake"
        }
      ]
    }
  ]
}
