/** Where the tests of learners run: NLAC_TEST_DEVICE, "cpu" or "cuda". */
export const testDevice = process.env.NLAC_TEST_DEVICE ?? "cpu";
