package server

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"fleetd/broker/sim"
	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/espimage/esptest"
	"fleetd/fleet/firmware"
)

// An imageBench is a server with simulated devices of one board, a release for it, and
// write access to its database.
type imageBench struct {
	*testServer
	db      *pgxpool.Pool
	devices []fleet.DeviceID
	board   string
}

const benchDevices = 3

func newImageBench(t *testing.T, faults string, change func(*Config)) *imageBench {
	t.Helper()
	s := startTestServer(t, func(c *Config) {
		c.timers, c.engineTick = campaign.DefaultTimers, 50*time.Millisecond
		if change != nil {
			change(c)
		}
	})
	wrong, err := sim.ParseFaults(faults)
	if err != nil {
		t.Fatal(err)
	}
	b := &imageBench{testServer: s, board: sim.DefaultBoards[0]}
	s.simulate(sim.Options{Devices: benchDevices, Seed: 7, TimeScale: 0.01, BootDelay: 50 * time.Millisecond,
		Boards: []string{b.board}, Faults: wrong})
	for _, d := range s.listed(benchDevices) {
		b.devices = append(b.devices, fleet.DeviceID(d.ID))
	}
	if b.db, err = pgxpool.New(t.Context(), s.cfg.DatabaseURL); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.db.Close)
	return b
}

// image uploads an image of the version for the board.
func (b *imageBench) image(version string, sign ...crypto.Signer) firmware.Image {
	b.t.Helper()
	data, err := sim.AppImage(b.board, version, 40_000)
	if err != nil {
		b.t.Fatal(err)
	}
	if len(sign) > 0 {
		data = esptest.Sign(data, sign...)
	}
	img, _, err := b.Firmware.Upload(b.t.Context(), testOperator, firmware.ImageUpload{Body: bytes.NewReader(data),
		Board: b.board})
	if err != nil {
		b.t.Fatal(err)
	}
	return img
}

func (b *imageBench) release(images ...firmware.Image) firmware.Release {
	b.t.Helper()
	var names []string
	for _, img := range images {
		names = append(names, img.SHA256)
	}
	r, err := b.Firmware.Create(b.t.Context(), testOperator, firmware.ReleaseRequest{Images: names})
	if err != nil {
		b.t.Fatal(err)
	}
	return r
}

// campaign plans to bring the release to all devices: one first, then the others.
func (b *imageBench) campaign(r firmware.Release, change ...func(*campaign.Plan)) campaign.Campaign {
	b.t.Helper()
	p := campaign.Plan{Name: "images", Release: r.ID, MaxInFlight: 10, MaxAttempts: 1, Waves: []campaign.WavePlan{
		{Name: "one", Count: 1, SuccessPercent: 50, MinSample: 1, Soak: time.Second, Gate: campaign.GateManual},
		{Name: "rest", Percent: 100, SuccessPercent: 50, MinSample: 1, Soak: time.Second, Gate: campaign.GateAuto}}}
	for _, f := range change {
		f(&p)
	}
	c, err := b.Campaigns.Create(b.t.Context(), testOperator, p)
	if err != nil {
		b.t.Fatal(err)
	}
	return c
}

func (b *imageBench) await(id uuid.UUID, state campaign.State, why campaign.PauseReason) (c campaign.Campaign) {
	b.t.Helper()
	b.eventually("the campaign to be "+string(state)+" "+string(why), func() bool {
		var err error
		if c, err = b.Campaigns.Campaign(b.t.Context(), id); err != nil {
			b.t.Fatal(err)
		}
		return c.State == state && c.PauseReason == why
	})
	return c
}

// write changes the database without fleetd.
func (b *imageBench) write(sql string, args ...any) {
	b.t.Helper()
	if _, err := b.db.Exec(b.t.Context(), sql, args...); err != nil {
		b.t.Fatal(err)
	}
}

// foreign stores other bytes in the blob store, and a row for them like the image's.
func (b *imageBench) foreign(like firmware.Image, version string) string {
	b.t.Helper()
	data, err := sim.AppImage(b.board, version, 40_000)
	if err != nil {
		b.t.Fatal(err)
	}
	sha, err := b.blobs.PutFile(b.t.Context(), bytes.NewReader(data), int64(len(data)))
	if err != nil {
		b.t.Fatal(err)
	}
	b.write(`INSERT INTO images SELECT (i).* FROM (SELECT jsonb_populate_record(i, jsonb_build_object('sha256', $2::text,
		'size', $3::bigint)) AS i FROM images i WHERE sha256 = $1) x`, like.SHA256, sha, len(data))
	return sha
}

// versions returns the number of devices by the version in their boot polls.
func (b *imageBench) versions() map[string]int {
	b.t.Helper()
	all, err := b.store.DevicesByID(b.t.Context(), b.devices)
	if err != nil {
		b.t.Fatal(err)
	}
	count := map[string]int{}
	for _, d := range all {
		count[d.Version]++
	}
	return count
}

// links counts the links that were created for an image.
func (b *imageBench) links(image string) (n int) {
	b.t.Helper()
	if err := b.db.QueryRow(b.t.Context(), `SELECT count(*) FROM firmware_links WHERE image = $1`, image).Scan(
		&n); err != nil {
		b.t.Fatal(err)
	}
	return n
}

func wantRefusal(t *testing.T, err error, code string) {
	t.Helper()
	if e, ok := errors.AsType[*fleet.Error](err); !ok || e.Code != code {
		t.Errorf("error %v, want %s", err, code)
	}
}

// TestImageSwappedInTheDatabase swaps the image of an approved campaign by writing to the
// database: before its start, and between two waves. No device gets an offer or a link.
func TestImageSwappedInTheDatabase(t *testing.T) {
	t.Parallel()
	b := newImageBench(t, "", nil)
	ctx := t.Context()
	before := b.versions()
	r := b.release(b.image("2.9.0"))
	img := r.Images[0]
	foreign := b.foreign(img, "9.9.9")
	swap := func(c campaign.Campaign, wave int) {
		b.write(`INSERT INTO campaign_images (campaign_id, image) VALUES ($1, $2)`, c.ID, foreign)
		b.write(`UPDATE deployments SET image = $2 WHERE campaign_id = $1 AND wave = $3`, c.ID, foreign, wave)
	}

	// Before the start: a second person's approval does not start the campaign.
	c := b.campaign(r, func(p *campaign.Plan) { p.ApprovalRequired = true })
	if c, err := b.Campaigns.Start(ctx, testOperator, c.ID); err != nil || c.State != campaign.AwaitingApproval {
		t.Fatalf("started: %s, %v", c.State, err)
	}
	swap(c, 0)
	second := fleet.Principal{Kind: fleet.KindOperator, ID: "2", Name: "bea", Role: fleet.RoleAdmin}
	_, err := b.Campaigns.Approve(ctx, second, c.ID, c.Digest)
	wantRefusal(t, err, "plan_changed")
	if _, err := b.Campaigns.Discard(ctx, testOperator, c.ID); err != nil {
		t.Fatal(err)
	}

	// Between waves: the first device has its update, the others get nothing.
	c = b.campaign(r)
	if _, err := b.Campaigns.Start(ctx, testOperator, c.ID); err != nil {
		t.Fatal(err)
	}
	b.await(c.ID, campaign.Paused, campaign.PausedByGate)
	swap(c, 1)
	if _, err := b.Campaigns.Advance(ctx, testOperator, c.ID); err != nil {
		t.Fatal(err)
	}
	c = b.await(c.ID, campaign.Paused, campaign.PausedBySystem)
	if !c.Reason.Is(campaign.ReasonPlanChanged) {
		t.Errorf("paused because %s", c.Reason)
	}
	_, err = b.Campaigns.Resume(ctx, testOperator, c.ID)
	wantRefusal(t, err, "plan_changed")

	// After a restart the server reads the rows again.
	b.write(`UPDATE campaigns SET state = 'running', pause_reason = '', revision = revision + 1 WHERE id = $1`, c.ID)
	b.restart()
	c = b.await(c.ID, campaign.Paused, campaign.PausedBySystem)
	for _, d := range deploymentsOf(t, b.testServer, c) {
		if d.Wave == 1 && (d.Attempt > 0 || d.State != campaign.DeploymentPending) {
			t.Errorf("device %s: %s in attempt %d", d.Device, d.State, d.Attempt)
		}
	}
	if n := b.links(foreign); n > 0 {
		t.Errorf("%d links of the foreign image", n)
	}
	if got := b.versions(); got["2.9.0"] != 1 || got["9.9.9"] != 0 || len(got) != len(before)+1 {
		t.Errorf("devices run %v, before %v", got, before)
	}
}

// TestCampaignOfAnEarlierVersion removes from a campaign the data that earlier versions
// did not store: the images that its devices may get. The campaign updates no further
// device, and a draft must be planned again before it updates any.
func TestCampaignOfAnEarlierVersion(t *testing.T) {
	t.Parallel()
	b := newImageBench(t, "", nil)
	ctx := t.Context()
	r := b.release(b.image("2.9.0"))
	forget := func(c campaign.Campaign) {
		b.write(`UPDATE campaigns SET images = NULL, revision = revision + 1 WHERE id = $1`, c.ID)
	}
	c := b.campaign(r)
	if _, err := b.Campaigns.Start(ctx, testOperator, c.ID); err != nil {
		t.Fatal(err)
	}
	b.await(c.ID, campaign.Paused, campaign.PausedByGate)
	forget(c)
	b.restart()
	if _, err := b.Campaigns.Advance(ctx, testOperator, c.ID); err != nil {
		t.Fatal(err)
	}
	c = b.await(c.ID, campaign.Paused, campaign.PausedBySystem)
	if !c.Reason.Is(campaign.ReasonPlanUnchecked) {
		t.Errorf("paused because %s", c.Reason)
	}
	_, err := b.Campaigns.Resume(ctx, testOperator, c.ID)
	wantRefusal(t, err, "plan_unchecked")
	if got := b.versions(); got["2.9.0"] != 1 {
		t.Errorf("devices run %v, want one with the release", got)
	}
	if _, err := b.Campaigns.Abort(ctx, testOperator, c.ID, false); err != nil {
		t.Fatal(err)
	}
	b.await(c.ID, campaign.Aborted, "")

	draft := b.campaign(r, func(p *campaign.Plan) { p.Waves = p.Waves[1:] })
	forget(draft)
	_, err = b.Campaigns.Start(ctx, testOperator, draft.ID)
	wantRefusal(t, err, "plan_unchecked")
	if draft, err = b.Campaigns.Campaign(ctx, draft.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Campaigns.Edit(ctx, testOperator, draft.ID, draft.Plan); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Campaigns.Start(ctx, testOperator, draft.ID); err != nil {
		t.Fatal(err)
	}
	b.await(draft.ID, campaign.Completed, "")
	if got := b.versions(); got["2.9.0"] != benchDevices {
		t.Errorf("devices run %v, want all with the release", got)
	}
}

// TestGateOpenedInTheDatabase changes the rules in the row of a wave: the approved plan
// still counts, and the second wave waits for an operator.
func TestGateOpenedInTheDatabase(t *testing.T) {
	t.Parallel()
	b := newImageBench(t, "", nil)
	c := b.campaign(b.release(b.image("2.9.0")))
	b.write(`UPDATE waves SET plan = jsonb_set(plan::jsonb, '{gate}', '"auto"') WHERE campaign_id = $1`, c.ID)
	if _, err := b.Campaigns.Start(t.Context(), testOperator, c.ID); err != nil {
		t.Fatal(err)
	}
	b.eventually("the campaign to stop at its gate, or to be done", func() bool {
		var err error
		if c, err = b.Campaigns.Campaign(t.Context(), c.ID); err != nil {
			t.Fatal(err)
		}
		return c.State != campaign.Running
	})
	if got := b.versions(); c.PauseReason != campaign.PausedByGate || got["2.9.0"] != 1 {
		t.Errorf("the campaign is %s %s, and devices run %v", c.State, c.PauseReason, got)
	}
}

// TestSwappedAfterTheOrder changes rows and bytes after a device got its link: the
// download is refused, and the deployment shows the reason.
func TestSwappedAfterTheOrder(t *testing.T) {
	t.Parallel()
	b := newImageBench(t, "no-get:100%", nil)
	ctx := t.Context()
	r := b.release(b.image("2.9.0"))
	img := r.Images[0]
	foreign := b.foreign(img, "9.9.9")
	c := b.campaign(r, func(p *campaign.Plan) { p.Waves = p.Waves[1:] })
	if _, err := b.Campaigns.Start(ctx, testOperator, c.ID); err != nil {
		t.Fatal(err)
	}
	var sent []campaign.Deployment
	b.eventually("all devices to have their orders", func() bool {
		sent = nil
		for _, d := range deploymentsOf(t, b.testServer, c) {
			if d.State == campaign.DeploymentSent {
				sent = append(sent, d)
			}
		}
		return len(sent) == benchDevices
	})
	file := filepath.Join(b.cfg.DataDir, "blobs", img.SHA256[:2], img.SHA256)
	for i, tamper := range []struct {
		what, reason string
		do           func()
	}{
		{"link", firmware.TransferForeign, func() {
			b.write(`UPDATE firmware_links SET image = $2 WHERE deployment_id = $1`, sent[0].ID, foreign)
		}},
		{"deployment, plan and link", firmware.TransferForeign, func() {
			b.write(`INSERT INTO campaign_images (campaign_id, image) VALUES ($1, $2)`, c.ID, foreign)
			b.write(`UPDATE deployments SET image = $2 WHERE id = $1`, sent[1].ID, foreign)
			b.write(`UPDATE firmware_links SET image = $2 WHERE deployment_id = $1`, sent[1].ID, foreign)
		}},
		{"file", firmware.TransferWithheld, func() {
			was, err := os.Stat(file)
			if err != nil {
				t.Fatal(err)
			}
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			data[len(data)/2] ^= 1
			if err := errors.Join(os.WriteFile(file+".new", data, 0o600),
				os.Chtimes(file+".new", was.ModTime(), was.ModTime()), os.Rename(file+".new", file)); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		address := b.ownLink(sent[i])
		if status, n := get(t, "HEAD", address); status != http.StatusOK {
			t.Fatalf("%s: the link is answered %d, %d bytes", tamper.what, status, n)
		}
		tamper.do()
		if status, n := get(t, "GET", address); status != http.StatusNotFound || n >= int(img.Size) {
			t.Errorf("%s: answered %d with %d bytes", tamper.what, status, n)
		}
		b.eventually("the deployment to say why", func() bool {
			events, err := b.Campaigns.DeploymentEvents(ctx, sent[i].ID)
			if err != nil {
				t.Fatal(err)
			}
			return slices.ContainsFunc(events, func(e campaign.DeploymentEvent) bool {
				return e.Kind == fleet.EvidenceRevoked && e.Reason.Is(tamper.reason) && e.To == campaign.DeploymentAborted
			})
		})
	}
}

// ownLink replaces the token in the link of a deployment with one that the test has.
func (b *imageBench) ownLink(d campaign.Deployment) string {
	b.t.Helper()
	secret := sha256.Sum256(d.ID[:])
	token := base64.RawURLEncoding.EncodeToString(secret[:])
	hash := sha256.Sum256([]byte(token))
	b.write(`UPDATE firmware_links SET token_hash = $2 WHERE deployment_id = $1`, d.ID, hash[:])
	return b.URL() + "/d/" + token + "/firmware.bin"
}

func get(t *testing.T, method, address string) (status, n int) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, len(data)
}

// keyFile writes the public key of a signing key.
func keyFile(t *testing.T, key *ecdsa.PrivateKey) string {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "key.pem")
	if err := os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// TestUnsignedFromBefore restarts a server with --require-signed whose images were
// uploaded earlier without signatures: they can no longer be released, started, rolled
// back to or served, and devices get answers as usual. A signed image is served.
func TestUnsignedFromBefore(t *testing.T) {
	t.Parallel()
	b := newImageBench(t, "no-get:100%", nil)
	ctx := t.Context()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	unsigned := b.image("2.9.0")
	r := b.release(unsigned)
	waiting, begun := b.campaign(r, func(p *campaign.Plan) { p.Devices = b.devices[:1]; p.Waves = p.Waves[1:] }),
		b.campaign(r, func(p *campaign.Plan) { p.Devices = b.devices[1:2]; p.Waves = p.Waves[1:] })
	if _, err := b.Campaigns.Start(ctx, testOperator, begun.ID); err != nil {
		t.Fatal(err)
	}
	var sent campaign.Deployment
	b.eventually("a device to have its order", func() bool {
		sent = deploymentsOf(t, b.testServer, begun)[b.devices[1]]
		return sent.State == campaign.DeploymentSent
	})
	address := b.ownLink(sent)
	b.cfg.ImageKeys, b.cfg.RequireSigned = []string{keyFile(t, key)}, true
	b.restart()

	if status, n := get(t, "GET", address); status != http.StatusNotFound || n >= int(unsigned.Size) {
		t.Errorf("the link is answered %d with %d bytes", status, n)
	}
	_, err = b.Firmware.Create(ctx, testOperator, firmware.ReleaseRequest{Images: []string{unsigned.SHA256}})
	wantRefusal(t, err, "image_withheld")
	_, err = b.Campaigns.Start(ctx, testOperator, waiting.ID)
	wantRefusal(t, err, "image_withheld")
	dry, err := b.Campaigns.DryRun(ctx, testOperator, waiting.Plan)
	if err != nil || dry.Targets != 0 || len(dry.Skipped) == 0 || dry.Skipped[0].Reason != firmware.SkipWithheld ||
		!slices.ContainsFunc(dry.Warnings, func(w campaign.PlanWarning) bool { return w.Code == campaign.WarnWithheld }) {
		t.Errorf("dry run: %d targets, skipped %+v, warnings %v, %v", dry.Targets, dry.Skipped, dry.Warnings, err)
	}
	fit, err := b.Firmware.Fit(ctx, firmware.FitQuery{Release: r.ID})
	if err != nil || fit.Fit > 0 {
		t.Errorf("fits %d devices, %v", fit.Fit, err)
	}
	b.listed(benchDevices) // they poll, and get answers

	signed := b.image("2.9.1", key)
	c := b.campaign(b.release(signed), func(p *campaign.Plan) { p.Devices = b.devices[2:]; p.Waves = p.Waves[1:] })
	if _, err := b.Campaigns.Start(ctx, testOperator, c.ID); err != nil {
		t.Fatal(err)
	}
	b.eventually("a signed image to go out", func() bool { return b.links(signed.SHA256) > 0 })
}

// TestFloor sets the minimum version of a board: planning skips its devices, a rollback
// below it is refused, and an earlier link no longer works.
func TestFloor(t *testing.T) {
	t.Parallel()
	b := newImageBench(t, "", nil)
	ctx := t.Context()
	b.image("2.9.0")
	old, latest := b.release(b.image("2.9.0")), b.release(b.image("2.9.1"))
	oneWave := func(p *campaign.Plan) { p.Waves = p.Waves[1:] }
	run := func(r firmware.Release) campaign.Campaign {
		c := b.campaign(r, oneWave)
		if _, err := b.Campaigns.Start(ctx, testOperator, c.ID); err != nil {
			t.Fatal(err)
		}
		return b.await(c.ID, campaign.Completed, "")
	}
	run(old)
	updated := run(latest)
	planned := b.campaign(old, oneWave, func(p *campaign.Plan) { p.AllowDowngrade = true })

	for _, by := range []fleet.Principal{{Kind: fleet.KindOperator, Name: "bo", Role: fleet.RoleOperator},
		{Kind: fleet.KindModel, Name: "m", Role: fleet.RoleAdmin}} {
		if _, err := b.Firmware.SetFloor(ctx, by, b.board, "2.9.1"); !errors.Is(err, fleet.ErrForbidden) {
			t.Errorf("%s set a floor: %v", by.Name, err)
		}
	}
	if _, err := b.Firmware.SetFloor(ctx, testOperator, b.board, "2.9.1"); err != nil {
		t.Fatal(err)
	}
	_, err := b.Campaigns.Start(ctx, testOperator, planned.ID)
	wantRefusal(t, err, "image_withheld")
	_, err = b.Campaigns.Rollback(ctx, testOperator, updated.ID)
	wantRefusal(t, err, "empty_audience")
	if e, ok := errors.AsType[*fleet.Error](err); !ok || e.Params["skip"] != string(firmware.SkipFloor) {
		t.Errorf("the refusal of the rollback does not say why: %v", err)
	}
	_, err = b.Firmware.Create(ctx, testOperator, firmware.ReleaseRequest{Images: []string{old.Images[0].SHA256}})
	wantRefusal(t, err, "image_withheld")
	if got := b.versions(); got["2.9.1"] != benchDevices {
		t.Errorf("devices run %v", got)
	}
	if err := b.Firmware.ClearFloor(ctx, testOperator, b.board); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Campaigns.Start(ctx, testOperator, planned.ID); err != nil {
		t.Errorf("without a floor: %v", err)
	}
	var n int
	if err := b.db.QueryRow(ctx, `SELECT count(*) FROM audit_entries WHERE action IN ('floor.set', 'floor.clear')
		AND subject = $1 AND actor_name = $2`, b.board, testOperator.Name).Scan(&n); err != nil || n != 2 {
		t.Errorf("%d entries in the audit, %v", n, err)
	}
}
