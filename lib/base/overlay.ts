/** Objects that differ from another one in a few members. */

/**
 * `target` with the members of `changes` in place of its own. All other members are read from
 * `target`, and methods run on it, private fields included.
 */
export function overlay<T extends object, C extends object>(
  target: T,
  changes: C,
): Omit<T, keyof C> & C & Pick<T, keyof T & keyof C> {
  return new Proxy(target, {
    get(_, key) {
      if (key in changes) return Reflect.get(changes, key);
      const value: unknown = Reflect.get(target, key, target);
      return typeof value === "function" ? value.bind(target) : value;
    },
    has: (_, key) => key in changes || key in target,
  }) as never;
}
