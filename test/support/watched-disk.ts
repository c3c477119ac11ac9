import type * as Fs from "node:fs";

/**
 * node:fs for `vi.mock`, which reports what becomes durable. Files are synced and renamed as usual.
 *
 * @param reports beforeSync may throw to fail a sync
 */
export function watchedDisk(
  fs: typeof Fs,
  reports: { beforeSync?(): void; synced(path: string): void; renamed?(to: string): void },
): object {
  const opened = new Map<number, string>();
  return {
    ...fs,
    openSync: (path: string, ...rest: [string]) => {
      const fd = fs.openSync(path, ...rest);
      opened.set(fd, path);
      return fd;
    },
    fsyncSync: (fd: number) => {
      reports.beforeSync?.();
      fs.fsyncSync(fd);
      reports.synced(opened.get(fd)!);
    },
    renameSync: (from: string, to: string) => {
      fs.renameSync(from, to);
      reports.renamed?.(to);
    },
  };
}
