/**
 * The paper's mathematics (section 6.1): MATH, tested on 500 problems of the highest level and
 * trained on the other 12,000. The paper does not name its 500; `hard` makes its own choice of
 * them. It needs MATH's files in `$NLAC_DATA/math`: other problems in their place would not be this
 * benchmark, so without them the recipe can be read and estimated, not run.
 */
export const environment = { name: "math", options: { hard: 500 } };
