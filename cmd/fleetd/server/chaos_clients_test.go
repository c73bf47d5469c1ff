package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"fleetd/broker/sim"
	"fleetd/fleet"
	"fleetd/fleet/call"
)

// Clients other than callers: a client whose calls need approvals, and the person who
// decides; a client that uploads images; and boards that join.

// chaosAsker is the name of the token whose calls wait for approvals.
const chaosAsker = "asker"

// An askedApproval is a call that waits for an approval, and the answer to the decision.
type askedApproval struct {
	marker   chaosMarker
	call     chaosCall
	decision string // approve or deny; "" for no decision
	status   int    // of the answer to the decision
}

// A chaosUpload is an image that was uploaded.
type chaosUpload struct {
	version, sha256 string
	status          int
	retryAfter      string
	err             error
}

// makeAsker creates the token of the asker and the rule that makes its calls wait.
func (w *chaosWorld) makeAsker() (token string, err error) {
	if token, err = w.newToken(chaosAsker, "operator"); err != nil {
		return "", err
	}
	_, err = w.rest("POST", "/policies", map[string]any{"name": "chaos", "names": []string{chaosAsker},
		"tools": []string{chaosTool}, "decision": call.DecisionRequireApproval}, &struct{}{})
	return token, err
}

// approveUntil makes calls that need an approval, and decides most of them.
func (l *chaosLoad) approveUntil(ctx context.Context, random *rand.Rand, ids []fleet.DeviceID) {
	for ; ctx.Err() == nil; time.Sleep(200 * time.Millisecond) {
		asked := askedApproval{marker: l.newMarker()}
		data, _ := json.Marshal(map[string]any{"tool": chaosTool, "timeout_ms": chaosCallTimeout.Milliseconds(),
			"arguments": asked.marker})
		req, _ := http.NewRequest("POST", "http://"+l.w.httpAddr+"/api/v1/devices/"+string(ids[random.IntN(len(ids))])+
			"/calls", bytes.NewReader(data))
		req.Header.Set("Authorization", "Bearer "+l.w.asker)
		req.Header.Set("Content-Type", "application/json")
		if _, err := l.w.send(req, &asked.call); err != nil || asked.call.ApprovalID == nil {
			continue
		}
		time.Sleep(between(random, 0, 2*time.Second))
		switch random.IntN(8) {
		case 0:
		case 1:
			asked.decision = "deny"
		default:
			asked.decision = "approve"
		}
		if asked.decision != "" {
			asked.status, _ = l.w.rest("POST", "/approvals/"+*asked.call.ApprovalID+"/"+asked.decision,
				map[string]any{"reason": "chaos"}, &struct{}{})
		}
		l.mu.Lock()
		l.approvals = append(l.approvals, asked)
		l.mu.Unlock()
	}
}

// approvalsWrong compares the answers to the asker and the person with the records.
// recordsUntrue checks what ran.
func approvalsWrong(w *chaosWorld, l *chaosLoad) (broken findings) {
	calls, err := chaosList[chaosCall](w, "/calls?limit=500&actor="+chaosAsker)
	if err != nil {
		return findings{err.Error()}
	}
	states := map[string]fleet.CallState{}
	for _, c := range calls {
		states[c.ID] = c.State
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	seen := map[string]int{}
	for _, asked := range l.approvals {
		state, found := states[asked.call.ID]
		seen[strings.TrimSpace(fmt.Sprint(asked.decision, " ", state))]++
		decided := asked.status/100 == 2
		switch {
		case !found:
			broken.addf("call %s (%s) waits for an approval by its answer, and is not on record", asked.call.ID,
				asked.marker)
		case decided && asked.decision == "deny" && state != fleet.CallRefused:
			broken.addf("call %s (%s) was denied, and is %s", asked.call.ID, asked.marker, state)
		case decided && asked.decision == "approve" && (state == fleet.CallPendingApproval || state == fleet.CallRefused):
			broken.addf("call %s (%s) was approved, and is %s", asked.call.ID, asked.marker, state)
		case asked.decision == "" && state != fleet.CallPendingApproval && !w.clockSet:
			broken.addf("call %s (%s) waits for a decision that was not made, and is %s", asked.call.ID, asked.marker, state)
		}
	}
	if len(broken) == 0 {
		w.journal.notef("%d approvals asked for: %v", len(l.approvals), seen)
	}
	return broken
}

// uploadUntil uploads one small image after another.
func (l *chaosLoad) uploadUntil(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		u := chaosUpload{version: fmt.Sprintf("0.0.%d", n)}
		data, err := sim.AppImage(chaosBoard, u.version, 20_000)
		if err != nil {
			l.w.breachf("no image: %v", err)
			return
		}
		req, _ := http.NewRequest("POST", "http://"+l.w.httpAddr+"/api/v1/images?board="+chaosBoard, bytes.NewReader(data))
		req.Header.Set("Authorization", "Bearer "+l.w.token)
		req.Header.Set("Content-Type", "application/octet-stream")
		var image struct{ SHA256 string }
		var header http.Header
		u.status, header, u.err = l.w.sendFor(req, &image)
		u.sha256, u.retryAfter = image.SHA256, header.Get("Retry-After")
		l.mu.Lock()
		l.uploads = append(l.uploads, u)
		l.mu.Unlock()
		time.Sleep(700 * time.Millisecond)
	}
}

// uploadsWrong checks that an accepted image is on record and complete, and that a
// failure is temporary, names the time to retry, and contains no path of the server. In a cluster
// the outcome may also be unknown: the core that received the image has died.
func uploadsWrong(w *chaosWorld, l *chaosLoad) (broken findings) {
	l.mu.Lock()
	defer l.mu.Unlock()
	taken := 0
	for _, u := range l.uploads {
		switch {
		case u.status/100 == 2:
			taken++
			var image struct{ Version string }
			if _, err := w.rest("GET", "/images/"+u.sha256, nil, &image); err != nil || image.Version != u.version {
				broken.addf("image %s (%s) was taken, and is on record as %q: %v", u.version, u.sha256, image.Version, err)
			}
			found, _ := filepath.Glob(filepath.Join(w.dataDir, "blobs", "*", u.sha256+"*"))
			direct, _ := filepath.Glob(filepath.Join(w.dataDir, "blobs", u.sha256+"*"))
			if len(found)+len(direct) == 0 {
				broken.addf("image %s (%s) was taken, and its file is not there", u.version, u.sha256)
			}
		case u.status == 0:
		case w.cluster != nil && u.status == http.StatusBadGateway && strings.Contains(u.err.Error(), "outcome_unknown"):
		case u.status != http.StatusServiceUnavailable || u.retryAfter == "":
			broken.addf("image %s was answered %d, Retry-After %q: %v", u.version, u.status, u.retryAfter, u.err)
		case strings.Contains(u.err.Error(), w.dir):
			broken.addf("the answer to image %s names a path: %v", u.version, u.err)
		}
	}
	if len(broken) == 0 {
		w.journal.notef("%d images handed in, %d taken", len(l.uploads), taken)
	}
	return broken
}

// Read-only directories simulate a file system that was remounted read-only after an
// error.

func canMountReadOnly(w *chaosWorld) string {
	probe := filepath.Join(w.dir, "probe")
	if err := os.MkdirAll(probe, 0o755); err != nil {
		return err.Error()
	}
	if err := mountReadOnly(probe); err != nil {
		return "the right to mount"
	}
	_ = unix.Unmount(probe, unix.MNT_DETACH)
	return ""
}

func mountReadOnly(dir string) error {
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	if err := unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		_ = unix.Unmount(dir, unix.MNT_DETACH)
		return err
	}
	return nil
}

func lockBlobs(w *chaosWorld, _ chaosStep) error {
	return mountReadOnly(filepath.Join(w.dataDir, "blobs"))
}

func unlockBlobs(w *chaosWorld, _ chaosStep) error {
	return unix.Unmount(filepath.Join(w.dataDir, "blobs"), unix.MNT_DETACH)
}

// join switches on new boards, so they join during the step's fault.
func (w *chaosWorld) join(step int) error {
	span := w.schedule.steps[step].lead + w.schedule.steps[step].lasts
	n := max(4, w.schedule.size.devices/25)
	boards, err := sim.New(sim.Options{OTAURL: "http://" + w.http.addr() + "/xiaozhi/ota/",
		Seed: w.schedule.seed + uint64(1000*(step+1)), Devices: n, Boards: []string{chaosBoard}, TimeScale: chaosTimeScale,
		Keepalive: chaosKeepalive, RecordCalls: 1 << 16, FirstMAC: fmt.Sprintf("02:c4:a0:70:%02x:00", step),
		ConnectRate: float64(n) / max(span.Seconds(), 1)})
	if err != nil {
		return err
	}
	w.joined = append(w.joined, boards)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- boards.Run(ctx) }()
	before := w.stopDevices
	w.stopDevices = func() { cancel(); <-done; before() }
	return nil
}

// everyDevice returns the devices of the start, and those that joined.
func (w *chaosWorld) everyDevice() map[fleet.DeviceID]*sim.Device {
	all := maps.Clone(w.ids)
	for _, boards := range w.joined {
		for i := range boards.Len() {
			id, _ := fleet.ParseDeviceID(boards.Device(i).ID()) // a MAC address
			all[id] = boards.Device(i)
		}
	}
	return all
}

// joinsLost checks that every board that was switched on is in the register, online and
// with its tools, whatever happened while it joined.
func joinsLost(w *chaosWorld, _ *chaosLoad) (broken findings) {
	devices, err := chaosList[deviceView](w, "/devices?limit=500")
	if err != nil {
		return findings{err.Error()}
	}
	known := map[string]deviceView{}
	for _, d := range devices {
		known[d.ID] = d
	}
	for id, device := range w.everyDevice() {
		if w.ids[id] != nil {
			continue
		}
		d, found := known[string(id)]
		if !found || d.Presence != string(fleet.PresenceOnline) || d.ToolsCount == 0 || !device.Connected() {
			broken.addf("%s joined; connected %t, on record %t, %q, %d tools", id, device.Connected(), found, d.Presence,
				d.ToolsCount)
		}
	}
	slices.Sort(broken)
	return broken
}

// registerWrong compares the version of each device in the register with the version that
// it runs.
func registerWrong(w *chaosWorld, _ *chaosLoad) (broken findings) {
	devices, err := chaosList[struct {
		ID        fleet.DeviceID
		Version   string
		ELFSHA256 string `json:"elf_sha256"`
	}](w, "/devices?limit=500")
	if err != nil {
		return findings{err.Error()}
	}
	for _, d := range devices {
		device, ours := w.ids[d.ID]
		if !ours {
			continue
		}
		if runs := device.Firmware(); d.Version != runs.Version || d.ELFSHA256 != runs.ElfSHA256 {
			broken.addf("%s is registered with %s (%.12s) and runs %s (%.12s)", d.ID, d.Version, d.ELFSHA256,
				runs.Version, runs.ElfSHA256)
		}
	}
	return broken
}
