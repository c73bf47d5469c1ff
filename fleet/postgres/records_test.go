package postgres_test

import (
	"crypto/sha256"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"fleetd/fleet"
	"fleetd/fleet/operator"
	"fleetd/fleet/picture"
)

func listing(id fleet.DeviceID, inventory string, tools ...string) fleet.ToolListing {
	l := fleet.ToolListing{Device: id, Inventory: fleet.Inventory{ID: inventory}, ServerName: "s", Version: "2.4.0",
		ELFSHA256: "9f2c", At: now()}
	for _, name := range tools {
		l.Inventory.Tools = append(l.Inventory.Tools, fleet.Tool{Name: name, Description: "d", InputSchema: []byte(`{}`),
			Audience: fleet.AudienceModel})
	}
	return l
}

func TestInventories(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	addDevices(t, s, unit)
	wantKind(t, s.SaveListing(ctx, listing("nobody", "i1", "a")), fleet.ErrNotFound)
	hostile := listing(unit, "i2", "x")
	hostile.Inventory.Tools[0].Description = "nul \x00 and \xff"
	hostile.Inventory.Tools[0].InputSchema = []byte(`{"a":"\u0000","b":"\\u0000"`)
	for i, l := range []fleet.ToolListing{listing(unit, "i1", "a", "b"), listing(unit, "i1", "a", "b"), hostile,
		listing(unit, "i1", "a", "b")} {
		l.At = now().Add(time.Duration(i) * time.Second)
		check(t, s.SaveListing(ctx, l))
	}
	history, err := s.DeviceInventories(ctx, unit)
	check(t, err)
	var got []string
	for _, r := range history {
		got = append(got, r.InventoryID)
	}
	same(t, got, []string{"i1", "i2", "i1"})
	if history[2].LastSeen.Equal(history[2].FirstSeen) || history[2].ToolsCount != 2 {
		t.Errorf("the repeated listing did not go on: %+v", history[2])
	}
	inv, err := s.Inventory(ctx, "i1")
	check(t, err)
	same(t, inv.Tools, listing(unit, "i1", "a", "b").Inventory.Tools)
	_, err = s.Inventory(ctx, "none")
	wantKind(t, err, fleet.ErrNotFound)
	d, _ := s.Device(ctx, unit)
	if d.InventoryID != "i1" || d.ToolsCount != 2 || d.InventoryAt == nil || d.InventoryELF != "9f2c" {
		t.Errorf("device after its listings: %+v", d)
	}
}

func TestOperatorsAndTokens(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	o := operator.Operator{ID: uuid.Must(uuid.NewV7()), Name: "Änne", Role: fleet.RoleOperator, PasswordHash: "h",
		CreatedAt: now()}
	check(t, s.CreateOperator(ctx, admin, o))
	again := o
	again.ID, again.Name = uuid.Must(uuid.NewV7()), "äNNE"
	wantKind(t, s.CreateOperator(ctx, admin, again), fleet.ErrConflict)
	got, err := s.OperatorByName(ctx, "äNNe")
	check(t, err)
	same(t, got, o)
	at := now()
	check(t, s.SetOperatorDisabled(ctx, admin, o.ID, &at))
	check(t, s.SetOperatorPassword(ctx, admin, o.ID, "h2"))
	check(t, s.SetOperatorLocale(ctx, o.ID, "zh-CN"))
	o.DisabledAt, o.PasswordHash, o.Locale = &at, "h2", "zh-CN"
	got, err = s.Operator(ctx, o.ID)
	check(t, err)
	same(t, got, o)
	wantKind(t, s.SetOperatorPassword(ctx, admin, uuid.New(), "h"), fleet.ErrNotFound)

	hash := sha256.Sum256([]byte("flt_x"))
	tok := operator.Token{ID: uuid.Must(uuid.NewV7()), Name: "ci", Kind: fleet.KindProgram, Role: fleet.RoleAdmin,
		Hash: hash[:], Hint: "x",
		CreatedBy: "ada", CreatedAt: now()}
	check(t, s.CreateToken(ctx, admin, tok))
	check(t, s.TouchToken(ctx, tok.ID, at))
	check(t, s.RevokeToken(ctx, admin, tok.ID, at))
	check(t, s.RevokeToken(ctx, admin, tok.ID, at.Add(time.Hour))) // keeps its time
	tok.LastUsedAt, tok.RevokedAt = &at, &at
	gotTok, err := s.TokenByHash(ctx, hash[:])
	check(t, err)
	same(t, gotTok, tok)
	_, err = s.TokenByHash(ctx, []byte("none"))
	wantKind(t, err, fleet.ErrNotFound)
	wantKind(t, s.RevokeToken(ctx, admin, uuid.New(), at), fleet.ErrNotFound)
}

func TestSessions(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	x := s.Sessions()
	check(t, x.CommitCtx(ctx, "a", []byte("1"), now().Add(time.Hour)))
	check(t, x.CommitCtx(ctx, "a", []byte("2"), now().Add(time.Hour)))
	check(t, x.CommitCtx(ctx, "old", []byte("3"), now().Add(-time.Second)))
	if data, found, err := x.FindCtx(ctx, "a"); string(data) != "2" || !found || err != nil {
		t.Errorf("session a: %q, %v, %v", data, found, err)
	}
	for _, token := range []string{"old", "none", "n\x00\xff"} {
		if _, found, err := x.FindCtx(ctx, token); found || err != nil {
			t.Errorf("session %q: %v, %v", token, found, err)
		}
	}
	check(t, s.DeleteExpired(ctx, now()))
	if all, err := x.AllCtx(ctx); len(all) != 1 || err != nil {
		t.Errorf("all sessions: %v, %v", all, err)
	}
	check(t, x.DeleteCtx(ctx, "a"))
	if _, found, _ := x.FindCtx(ctx, "a"); found {
		t.Error("a deleted session is found")
	}
}

func TestIdempotency(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	var first atomic.Int32
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			saved, err := s.BeginIdempotent(ctx, "ada", "k", []byte("h"))
			if err == nil && saved == nil {
				first.Add(1)
			} else {
				wantKind(t, err, fleet.ErrConflict)
			}
		})
	}
	wg.Wait()
	if first.Load() != 1 {
		t.Errorf("%d requests believe to be the first", first.Load())
	}
	check(t, s.SaveIdempotent(ctx, "ada", "k", fleet.SavedResponse{Status: 200, Body: []byte("ok")}))
	saved, err := s.BeginIdempotent(ctx, "ada", "k", []byte("h"))
	check(t, err)
	same(t, saved, &fleet.SavedResponse{Status: 200, Body: []byte("ok")})
	_, err = s.BeginIdempotent(ctx, "ada", "k", []byte("other"))
	wantKind(t, err, fleet.ErrConflict)
	if saved, err := s.BeginIdempotent(ctx, "eve", "k", []byte("h")); saved != nil || err != nil {
		t.Errorf("another actor's key: %v, %v", saved, err)
	}
	check(t, s.AbandonIdempotent(ctx, "eve", "k"))
	if saved, err := s.BeginIdempotent(ctx, "eve", "k", []byte("h")); saved != nil || err != nil {
		t.Errorf("an abandoned key: %v, %v", saved, err)
	}
	if n, err := s.InterruptIdempotent(ctx); n != 1 || err != nil {
		t.Errorf("%d requests of an earlier process, %v", n, err)
	}
	_, err = s.BeginIdempotent(ctx, "eve", "k", []byte("h"))
	wantKind(t, err, fleet.ErrConflict)
	if reason := fleet.CauseOf(err); !reason.Is("request_interrupted") {
		t.Errorf("an interrupted request: %v", err)
	}
}

func TestSettings(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	var got []byte
	wantKind(t, s.Setting(ctx, "key", &got), fleet.ErrNotFound)
	mine, theirs := []byte("mine"), []byte("theirs")
	check(t, s.InitSetting(ctx, "key", &mine))
	check(t, s.InitSetting(ctx, "key", &theirs))
	same(t, string(theirs), "mine")
	check(t, s.SetSetting(ctx, "key", []byte("new")))
	check(t, s.Setting(ctx, "key", &got))
	same(t, string(got), "new")
}

func TestLinksAndSnapshots(t *testing.T) {
	ctx, s := t.Context(), newStore(t)
	hash := sha256.Sum256([]byte("t"))
	l := picture.URLLink{TokenHash: hash[:], Purpose: fleet.LinkUpload, Device: unit, Call: uuid.Must(uuid.NewV7()),
		ExpiresAt: now().Add(time.Minute)}
	check(t, s.CreateURLLink(ctx, l))
	_, err := s.UseURLLink(ctx, hash[:], fleet.LinkPreview, now())
	wantKind(t, err, fleet.ErrNotFound)
	_, err = s.UseURLLink(ctx, hash[:], fleet.LinkUpload, now().Add(time.Hour))
	wantKind(t, err, fleet.ErrNotFound)
	got, err := s.UseURLLink(ctx, hash[:], fleet.LinkUpload, now())
	check(t, err)
	same(t, got, l)
	_, err = s.UseURLLink(ctx, hash[:], fleet.LinkUpload, now())
	wantKind(t, err, fleet.ErrNotFound)

	n := picture.Snapshot{ID: uuid.Must(uuid.NewV7()), Kind: picture.SnapshotScreen, Device: unit, Call: l.Call, Blob: "b",
		MediaType: "image/png", Width: 1, Height: 2, Size: 3, CreatedAt: now()}
	check(t, s.CreateSnapshot(ctx, n))
	for _, find := range []func() (picture.Snapshot, error){
		func() (picture.Snapshot, error) { return s.Snapshot(ctx, n.ID) },
		func() (picture.Snapshot, error) { return s.SnapshotOfCall(ctx, n.Call) },
		func() (picture.Snapshot, error) {
			return picture.Newest(ctx, s, unit, picture.SnapshotScreen)
		},
	} {
		got, err := find()
		check(t, err)
		same(t, got, n)
	}
	bad := n
	bad.ID, bad.MediaType = uuid.Must(uuid.NewV7()), "text/html"
	wantKind(t, s.CreateSnapshot(ctx, bad), fleet.ErrInvalid)
}
