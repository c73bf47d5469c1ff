package postgres_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/audit"
	"fleetd/fleet/firmware"
	"fleetd/fleet/picture"
	"fleetd/fleet/telemetry"
)

func coreDump(blob string, boots int64) telemetry.CoreDump {
	return telemetry.CoreDump{ID: uuid.Must(uuid.NewV7()), Device: unit, Call: uuid.Must(uuid.NewV7()),
		Blob: strings.Repeat(blob, 32), Size: 4,
		Summary: "task main", ELFSHA256: "9f2c", Version: "1.1.0", BuildFrom: telemetry.BuildFromDump, ResetReason: "panic",
		Boots: boots, CreatedAt: now()}
}

func TestCoreDumps(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	first, second := coreDump("ab", 3), coreDump("cd", 4)
	second.Summary = "nul \x00 and \xff"
	check(t, s.CreateCoreDump(ctx, first))
	check(t, s.CreateCoreDump(ctx, second))
	again := coreDump("ab", 3)
	wantKind(t, s.CreateCoreDump(ctx, again), fleet.ErrConflict)
	again.Boots = 5 // a crash that left the same bytes
	check(t, s.CreateCoreDump(ctx, again))

	got, err := s.CoreDump(ctx, first.ID)
	check(t, err)
	same(t, got, first)
	list, err := s.CoreDumps(ctx, unit, 2)
	check(t, err)
	if len(list) != 2 || list[0].ID != again.ID || list[1].ID != second.ID || list[1].Summary != "nul  and \uFFFD" {
		t.Errorf("list %+v", list)
	}
	_, err = s.CoreDump(ctx, uuid.New())
	wantKind(t, err, fleet.ErrNotFound)

	unused, err := s.DeleteCoreDump(ctx, admin, first.ID)
	check(t, err)
	if unused {
		t.Error("another core dump has the same bytes, and they are called unused")
	}
	unused, err = s.DeleteCoreDump(ctx, admin, again.ID)
	check(t, err)
	if !unused {
		t.Error("the bytes of the last core dump are kept")
	}
	_, err = s.DeleteCoreDump(ctx, admin, again.ID)
	wantKind(t, err, fleet.ErrNotFound)
	entries, err := s.AuditEntries(ctx, audit.Filter{Action: "core_dump.delete"})
	check(t, err)
	if len(entries.Items) != 2 || entries.Items[0].Subject != again.ID.String() ||
		entries.Items[0].Detail["device"] != string(unit) {
		t.Errorf("audit %+v", entries.Items)
	}
}

func TestOldCoreDumps(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	old, shared, fresh := coreDump("ab", 1), coreDump("cd", 1), coreDump("cd", 2)
	old.CreatedAt, shared.CreatedAt = now().Add(-time.Hour), now().Add(-time.Hour)
	for _, c := range []telemetry.CoreDump{old, shared, fresh} {
		check(t, s.CreateCoreDump(ctx, c))
	}
	deleted, unused, err := s.DeleteCoreDumpsBefore(ctx, now().Add(-time.Minute))
	check(t, err)
	if deleted != 2 || len(unused) != 1 || unused[0] != old.Blob {
		t.Errorf("%d deleted, unused %q", deleted, unused)
	}
	deleted, unused, err = s.DeleteCoreDumpsBefore(ctx, now().Add(-time.Minute))
	if check(t, err); deleted != 0 || unused != nil {
		t.Errorf("again: %d deleted, unused %q", deleted, unused)
	}
}

// A link with this purpose can be stored, and cannot be used for anything else.
func TestCoreDumpLink(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	l := picture.URLLink{TokenHash: make([]byte, 32), Purpose: fleet.LinkCoreDump, Device: unit, Call: uuid.New(),
		ExpiresAt: now().Add(time.Minute)}
	check(t, s.CreateURLLink(ctx, l))
	_, err := s.UseURLLink(ctx, l.TokenHash, fleet.LinkUpload, now())
	wantKind(t, err, fleet.ErrNotFound)
	got, err := s.UseURLLink(ctx, l.TokenHash, fleet.LinkCoreDump, now())
	check(t, err)
	if got.Device != unit || got.Call != l.Call {
		t.Errorf("link %+v", got)
	}
}

func TestBuildsOf(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	for i, elf := range []string{strings.Repeat("9f", 32), strings.Repeat("9e", 32), "", "9_"} {
		img := firmware.Image{SHA256: strings.Repeat(string(rune('a'+i)), 64), Size: 9, Chip: "esp32", Version: "1",
			ELFSHA256: elf, CreatedAt: now(), UploadedBy: admin}
		if _, _, err := s.CreateImage(ctx, admin, img); err != nil {
			t.Fatal(err)
		}
	}
	for prefix, want := range map[string]int{"9f9f9f9f9": 1, "9": 2, "aa": 0, "": 2, "9_": 1, "%": 0, "\x00": 2} {
		builds, err := s.BuildsOf(ctx, prefix, 2)
		check(t, err)
		if len(builds) != want {
			t.Errorf("%q: %q, want %d", prefix, builds, want)
		}
	}
}
