/** An Error with a `code`, as native throws them. */
export function systemError(code: string, message: string): Error {
  return Object.assign(new Error(message), { code });
}
