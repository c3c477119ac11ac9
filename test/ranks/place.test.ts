import { describe, expect, test } from "vitest";
import { deviceOfRank, rankPlace, threadsOfRank } from "../../lib/ranks/place.ts";

const env = { RANK: "1", WORLD_SIZE: "4", MASTER_ADDR: "node-0", MASTER_PORT: "29500" };

describe("the place of a rank", () => {
  test("is undefined unless a launcher set it", () => {
    expect(rankPlace({})).toBeUndefined();
    expect(rankPlace({ RANK: "0" })).toBeUndefined();
    expect(rankPlace({ RANK: "", WORLD_SIZE: "2" })).toBeUndefined();
  });

  test("is read from the variables of torchrun", () => {
    const place = {
      rank: 1,
      ranks: 4,
      localRank: 0,
      address: "node-0",
      port: 29500,
      serves: false,
      restart: 0,
    };
    expect(rankPlace(env)).toMatchObject({ ...place, timeoutMs: 600_000, localRanks: undefined });
    expect(rankPlace({ ...env, RANK: "0" })).toMatchObject({ rank: 0, serves: true });
    const torchrun = { TORCHELASTIC_USE_AGENT_STORE: "True", TORCHELASTIC_RESTART_COUNT: "2" };
    const given = {
      ...env,
      ...torchrun,
      RANK: "0",
      LOCAL_RANK: "3",
      LOCAL_WORLD_SIZE: "4",
      NLAC_PEER_TIMEOUT: "30",
    };
    expect(rankPlace(given)).toMatchObject({
      ...{ rank: 0, serves: false, restart: 2, localRank: 3, localRanks: 4, timeoutMs: 30_000 },
    });
  });

  test.each([
    ["RANK", "4"],
    ["RANK", "-1"],
    ["WORLD_SIZE", "many"],
    ["WORLD_SIZE", "0"],
    ["MASTER_ADDR", ""],
    ["MASTER_PORT", ""],
    ["MASTER_PORT", "70000"],
    ["LOCAL_RANK", "x"],
    ["NLAC_PEER_TIMEOUT", "0"],
  ])("names a variable that is wrong: %s=%s", (name, value) => {
    expect(() => rankPlace({ ...env, [name]: value })).toThrow(
      expect.objectContaining({ code: "ERR_CONFIG", message: expect.stringContaining(name) }),
    );
  });

  test("chooses the GPU and the threads of a rank", () => {
    expect(deviceOfRank("cuda", { localRank: 3 })).toBe("cuda:3");
    expect(deviceOfRank("cuda:1", { localRank: 3 })).toBe("cuda:1");
    expect(deviceOfRank("cpu", { localRank: 3 })).toBe("cpu");
    expect(threadsOfRank({ localRanks: undefined }, {})).toBeUndefined();
    expect(threadsOfRank({ localRanks: 2 }, { NLAC_THREADS: "3" })).toBeUndefined();
    expect(threadsOfRank({ localRanks: 4096 }, {})).toBe(1);
  });
});
