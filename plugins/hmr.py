"""Development: plugin code is reloaded when its source changes, for as long as this row is live."""

from dshd import HMR, LOADER, Config, Context, plugin


@plugin("hmr", inject=[LOADER], provides=[HMR])
async def hmr(ctx: Context, config: Config) -> None:
    watcher = ctx[LOADER].code_watcher()
    ctx.provide(HMR, watcher)
    ctx.spawn(watcher.run, name="code reload")
