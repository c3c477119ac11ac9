/**
 * The pinned torch wheel of each platform. Torch's C++ libraries do not depend on the Python
 * version, so one wheel per platform works on every machine, even without Python.
 */

import { type Platform, platformName, thisPlatform } from "../base/platform.ts";
import { CUDA_COMPILER_WHEELS, CUDA_RUN_WHEELS, WHEEL_GLIBC_MINOR, type Wheel } from "./wheels.ts";

/** x86-64: torch, and two NVIDIA libraries that its libtorch_cpu.so links against. */
const linuxX64: readonly Wheel[] = [
  {
    name: "torch",
    version: "2.11.0",
    file: "torch-2.11.0-cp311-cp311-manylinux_2_28_x86_64.whl",
    sha256: "7aa2f9bbc6d4595ba72138026b2074be1233186150e9292865e04b7a63b8c67a",
    bytes: 530_604_548,
    parts: {
      record: "86b11de9e81e378fe38d68644e581b98c138494d67197b94ba12eade2be836e7",
      run: [
        ...["torch/lib/libc10.so", "torch/lib/libtorch_cpu.so", "torch/lib/libgomp.so.1", "torch/version.py"],
        "torch-2.11.0.dist-info/licenses/",
      ],
      compile: ["torch/include/"],
      bytes: { run: 121_252_635, compile: 8_925_017 },
    },
  },
  {
    name: "nvidia-cuda-runtime",
    version: "13.0.96",
    file: "nvidia_cuda_runtime-13.0.96-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
    sha256: "7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548",
    bytes: 2_243_632,
    parts: {
      record: "34c7a65651597fd8a376b049b69bb26db399a9ea443a7a142ccd34f5a10f79c4",
      run: ["nvidia/cu13/lib/libcudart.so.13"],
      compile: [],
      bytes: { run: 203_707, compile: 0 },
    },
  },
  {
    name: "nvidia-cuda-cupti",
    version: "13.0.85",
    file: "nvidia_cuda_cupti-13.0.85-py3-none-manylinux_2_25_x86_64.whl",
    sha256: "4eb01c08e859bf924d222250d2e8f8b8ff6d3db4721288cf35d14252a4d933c8",
    bytes: 10_715_597,
    parts: {
      record: "f8ae8ddce85f8e319abac90e956bf45a572e31f4ff01af2d634f37aa3d78e3eb",
      run: ["nvidia/cu13/lib/libcupti.so.13"],
      compile: [],
      bytes: { run: 1_485_037, compile: 0 },
    },
  },
];

/** 64-bit ARM: the same, and the libraries for linear algebra that torch has beside it there. */
const linuxArm64: readonly Wheel[] = [
  {
    name: "torch",
    version: "2.11.0",
    file: "torch-2.11.0-cp311-cp311-manylinux_2_28_aarch64.whl",
    sha256: "d91aac77f24082809d2c5a93f52a5f085032740a1ebc9252a7b052ef5a4fddc6",
    bytes: 419_718_178,
    parts: {
      record: "e4931d1af224e3e69f194c46667e22898830ee09efb52489a3f90ff55e219b5e",
      run: [
        ...["torch/lib/libc10.so", "torch/lib/libtorch_cpu.so", "torch/lib/libgomp.so.1", "torch/version.py"],
        ...["torch/lib/libarm_compute.so", "torch/lib/libarm_compute_graph.so"],
        ...["torch/lib/libnvpl_blas_core.so.0", "torch/lib/libnvpl_blas_lp64_gomp.so.0"],
        ...["torch/lib/libnvpl_lapack_core.so.0", "torch/lib/libnvpl_lapack_lp64_gomp.so.0"],
        "torch-2.11.0.dist-info/licenses/",
      ],
      compile: ["torch/include/"],
      bytes: { run: 73_819_427, compile: 9_087_104 },
    },
  },
  {
    name: "nvidia-cuda-runtime",
    version: "13.0.96",
    file: "nvidia_cuda_runtime-13.0.96-py3-none-manylinux2014_aarch64.manylinux_2_17_aarch64.whl",
    sha256: "ef9bcbe90493a2b9d810e43d249adb3d02e98dd30200d86607d8d02687c43f55",
    bytes: 2_261_060,
    parts: {
      record: "8ff0b015e7bb39dbf9cfc2a997cdb581914c6661dbbdbc1a71c7cc3da6a4dc11",
      run: ["nvidia/cu13/lib/libcudart.so.13"],
      compile: [],
      bytes: { run: 213_621, compile: 0 },
    },
  },
  {
    name: "nvidia-cuda-cupti",
    version: "13.0.85",
    file: "nvidia_cuda_cupti-13.0.85-py3-none-manylinux_2_25_aarch64.whl",
    sha256: "796bd679890ee55fb14a94629b698b6db54bcfd833d391d5e94017dd9d7d3151",
    bytes: 10_310_827,
    parts: {
      record: "d26eaae605b8bd5e97a7355a3938d2213f2062f0f23d2afd1c00c9d8647cf4a6",
      run: ["nvidia/cu13/lib/libcupti.so.13"],
      compile: [],
      bytes: { run: 1_287_588, compile: 0 },
    },
  },
];

/** macOS on Apple's processors: torch, with its OpenMP runtime. BLAS is the system's. */
const darwinArm64: readonly Wheel[] = [
  {
    name: "torch",
    version: "2.11.0",
    file: "torch-2.11.0-cp311-cp311-macosx_11_0_arm64.whl",
    sha256: "7b6a60d48062809f58595509c524b88e6ddec3ebe25833d6462eeab81e5f2ce4",
    bytes: 80_529_712,
    parts: {
      record: "46fcc2b1098231cce593fc18eed1696bc5f4ec8a7c888c4c503390ad0df7c1b9",
      run: [
        ...["torch/lib/libc10.dylib", "torch/lib/libtorch_cpu.dylib", "torch/lib/libomp.dylib"],
        ...["torch/version.py", "torch-2.11.0.dist-info/licenses/"],
      ],
      compile: ["torch/include/"],
      bytes: { run: 48_276_936, compile: 9_133_451 },
    },
  },
];

/** The wheels to install by group. */
export interface PinnedWheels {
  torch: readonly Wheel[];
  /** For CUDA; undefined where it is not supported. */
  cuda:
    | {
        compiler: readonly Wheel[];
        run: readonly Wheel[];
        /** Those of `run` whose headers are needed to compile. */
        headers: readonly Wheel[];
      }
    | undefined;
}

const pinned: Record<string, PinnedWheels> = {
  "linux-x64": {
    torch: linuxX64,
    cuda: {
      compiler: CUDA_COMPILER_WHEELS,
      run: CUDA_RUN_WHEELS,
      headers: CUDA_RUN_WHEELS.filter(({ parts }) => parts !== undefined),
    },
  },
  "linux-arm64": { torch: linuxArm64, cuda: undefined },
  "darwin-arm64": { torch: darwinArm64, cuda: undefined },
};

/** The wheels for a platform; undefined if there are none. */
export function pinnedWheels(platform: Platform): PinnedWheels | undefined {
  return pinned[platformName(platform)];
}

/** The platforms to pass to pip and uv: those of the wheels' files, or of this machine. */
export function platformTags(
  wheels: readonly Wheel[],
  platform: Platform = thisPlatform,
): { pip: string[]; uv: string } {
  const files = wheels.map(({ file }) => file).join(" ");
  const own =
    platform.os === "darwin" ? "macosx_11_0_arm64" : platform.arch === "arm64" ? "aarch64" : "x86_64";
  const arch = /macosx_\d+_\d+_arm64|x86_64|aarch64/.exec(files)?.[0] ?? own;
  if (arch.startsWith("macosx")) return { pip: [arch], uv: "aarch64-apple-darwin" };
  // pip needs every compatible platform tag listed.
  const minors = Array.from({ length: WHEEL_GLIBC_MINOR - 4 }, (_, i) => WHEEL_GLIBC_MINOR - i);
  const pip = [...minors.map((minor) => `manylinux_2_${minor}`), "manylinux2014", "manylinux2010"];
  return { pip: pip.map((tag) => `${tag}_${arch}`), uv: `${arch}-manylinux_2_${WHEEL_GLIBC_MINOR}` };
}
