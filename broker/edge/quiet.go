package edge

import (
	"context"
	"log/slog"
)

// quietHandler passes on mochi's log records without the packets in them, which contain tool
// results and the passwords of a CONNECT. Devices can cause protocol errors at will, so all
// records are logged at level debug.
type quietHandler struct{ inner slog.Handler }

func (h quietHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.inner.Enabled(ctx, quiet(level))
}

func (h quietHandler) Handle(ctx context.Context, r slog.Record) error {
	out := slog.NewRecord(r.Time, quiet(r.Level), "mqtt: "+r.Message, r.PC)
	r.Attrs(func(a slog.Attr) bool {
		if harmless(a) {
			out.AddAttrs(a)
		}
		return true
	})
	return h.inner.Handle(ctx, out)
}

func (h quietHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	var kept []slog.Attr
	for _, a := range attrs {
		if harmless(a) {
			kept = append(kept, a)
		}
	}
	return quietHandler{h.inner.WithAttrs(kept)}
}

func (h quietHandler) WithGroup(name string) slog.Handler {
	return quietHandler{h.inner.WithGroup(name)}
}

func quiet(level slog.Level) slog.Level {
	return min(level, slog.LevelDebug)
}

// harmless lists the attributes that may be logged, so a new attribute does not slip through.
func harmless(a slog.Attr) bool {
	switch a.Key {
	case "error", "client", "remote", "listener", "hook", "id", "protocol", "address",
		"version", "keepalive", "recommended", "old_remote", "new_remote":
		return true
	}
	return false
}
