// Where the daemon is. Addresses are relative to the page, so a proxy may serve the daemon below a path of its own.
export const ROOT = new URL("..", document.baseURI);
