export { type ErrandsOptions, type ErrandsTask, errands, errandsSuccessRate } from "./environment.ts";
export { errandsModel } from "./model.ts";
export type { Errand, ErrandPolicy, ErrandState } from "./world.ts";
