
const base = localStorage.getItem("ffkv"), path = location.pathname.replace(/^[/]~[^/]*/, "");
if (base && location.pathname !== base + path) location.replace(base + path + location.search + location.hash);
