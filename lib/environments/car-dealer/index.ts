export { scriptedDealer } from "./dealer.ts";
export { type CarDealerOptions, type CarDealerTask, carDealer } from "./environment.ts";
