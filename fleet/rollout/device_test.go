package rollout_test

import (
	"cmp"
	"context"
	"strings"
	"sync"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/firmware"
	"fleetd/fleet/rollout"
	"fleetd/fleet/telemetry"
)

// device is a scripted device with stock behaviour (protocol 4.7), or with a
// fault.
type device struct {
	w     *world
	id    fleet.DeviceID
	fault string

	mu     sync.Mutex
	elf    string
	online bool
	epoch  int64
	since  time.Time
	tries  int
	life   int    // increases with each power cut: code from before it does not continue
	next   string // the build that the bootloader starts; "" is elf
}

func (d *device) isOnline() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.online
}

func (d *device) running() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.elf
}

// pause lets time pass, and reports whether the power stayed on.
func (d *device) pause(t time.Duration, life int) bool {
	time.Sleep(t)
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.life == life
}

func (d *device) lives() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.life
}

// powerCycle cuts the power, regardless of the device's activity.
func (d *device) powerCycle(off time.Duration) {
	d.mu.Lock()
	d.life++
	d.mu.Unlock()
	d.leave(false)
	time.Sleep(off)
	d.mu.Lock()
	elf := cmp.Or(d.next, d.elf)
	d.next = ""
	d.mu.Unlock()
	d.boot(elf)
}

func (d *device) observed(l firmware.Link, kind fleet.EvidenceKind, bytes int64) {
	o := campaign.Observation{At: time.Now().UTC(), Kind: kind, Attempt: l.Attempt, Bytes: bytes}
	for range d.w.copies {
		d.w.current().Observe(rollout.OfTransfer(firmware.Transfer{Deployment: l.Deployment, Attempt: o.Attempt, At: o.At,
			Kind: o.Kind,
			Sent: o.Bytes}))
	}
}

// install runs the device's part after it was notified of an image. answer is nil if a boot
// poll notified it. install reports whether the device left its old build.
func (d *device) install(l firmware.Link, answer func(fleet.EvidenceKind, string)) (left bool) {
	d.mu.Lock()
	d.tries++
	try, life := d.tries, d.life
	d.mu.Unlock()
	if !d.pause(4*time.Second, life) {
		return false
	}
	if d.fault == "liar" {
		for _, s := range []fleet.JobState{fleet.JobAccepted, fleet.JobDone} {
			d.reports(l, telemetry.Job{State: s})
		}
		return false
	}
	if d.fault == "reports refusal" {
		d.reports(l, telemetry.Job{State: fleet.JobFailed, Code: "refused", Reason: "only signed images are taken here"})
		return false
	}
	d.goesOn(l, fleet.JobAccepted, 0)
	if d.fault == "silent" {
		if answer != nil {
			answer(fleet.EvidenceAnswer, "true")
		}
		return false
	}
	if !d.download(l, try, life) {
		return false
	}
	switch d.fault {
	case "reports bad image":
		d.reports(l, telemetry.Job{State: fleet.JobFailed, Code: "corrupt", Reason: notSound})
		return false
	case "refuses image":
		if d.pause(3*time.Second, life) && answer != nil {
			answer(fleet.EvidenceLateAnswer, "true")
		}
		return false
	case "refuses image silently":
		return false
	}
	if !d.pause(time.Second, life) {
		return false
	}
	d.restartInto(life)
	d.reportsOutcome(l, life)
	return true
}

// restartInto ends the old build and starts the new one, or the build that the fault selects.
func (d *device) restartInto(life int) {
	build := map[string]string{"rolled back": oldELF, "reports rolled back": oldELF, "wrong build": otherELF}[d.fault]
	d.mu.Lock()
	d.next = cmp.Or(build, newELF)
	next := d.next
	d.mu.Unlock()
	d.leave(true)
	if !d.pause(6*time.Second, life) || d.fault == "dead" || d.fault == "slow" && !d.pause(20*time.Minute, life) {
		return
	}
	d.mu.Lock()
	d.next = ""
	d.mu.Unlock()
	d.boot(next)
	if d.fault != "rolled back later" || !d.pause(20*time.Second, life) {
		return
	}
	d.leave(false)
	time.Sleep(3 * time.Second)
	d.boot(oldELF)
}

func (d *device) download(l firmware.Link, try, life int) bool {
	if !d.w.store.served(l.Deployment, l.Attempt) {
		return false
	}
	d.observed(l, fleet.EvidenceGet, 0)
	const pieces = 8
	for i := range int64(pieces) {
		alive := d.pause(time.Second, life)
		d.goesOn(l, fleet.JobProgress, int(12*(i+1)))
		if d.fault == "reports, resumes" && i == 3 {
			d.observed(l, fleet.EvidenceCut, imageSize/2)
			if !d.pause(40*time.Second, life) || !d.w.store.served(l.Deployment, l.Attempt) {
				return false
			}
			d.observed(l, fleet.EvidenceGet, imageSize/2)
			continue
		}
		sent := imageSize / pieces * (i + 1)
		cut := d.fault == "cut" || d.fault == "reports a cut" || d.fault == "cut once" && try == 1
		if !alive || !d.w.store.served(l.Deployment, l.Attempt) || cut && i == 3 {
			d.observed(l, fleet.EvidenceCut, sent)
			if d.fault == "reports a cut" {
				d.reports(l, telemetry.Job{State: fleet.JobFailed, Code: "unavailable", Reason: "the download was cut short"})
			}
			return false
		}
		if d.fault == "stalls" && i == 3 {
			return false
		}
		if i < pieces-1 {
			d.observed(l, fleet.EvidenceBytes, sent)
		}
	}
	last := func() { d.observed(l, fleet.EvidenceDownloaded, imageSize) }
	if strings.HasPrefix(d.fault, "last byte late") { // seen when the device has connected again
		time.AfterFunc(15*time.Second, last)
	} else {
		last()
	}
	return true
}

func (d *device) reboot(after time.Duration) {
	life := d.lives()
	if !d.pause(after, life) {
		return
	}
	d.leave(true)
	if d.pause(5*time.Second, life) {
		d.boot(d.running())
	}
}

func (d *device) leave(clean bool) {
	d.mu.Lock()
	was := d.online
	d.online, d.since = false, time.Now().UTC()
	d.mu.Unlock()
	if !was {
		return
	}
	kind := fleet.EvidenceConnectionLost
	if clean {
		kind = fleet.EvidenceDisconnect
	}
	d.emit(kind)
}

func (d *device) emit(kind fleet.EvidenceKind) {
	seen := fleet.Evidence{At: time.Now().UTC(), Kind: kind}
	for range d.w.copies {
		d.w.current().Observe(rollout.OfDevice(d.id, seen))
	}
}

// boot starts the device with a build: it polls, connects, and lists its tools.
func (d *device) boot(elf string) {
	d.mu.Lock()
	changed, life := d.elf != elf, d.life
	d.elf = elf
	d.mu.Unlock()
	if !strings.HasSuffix(d.fault, "no poll") || !changed {
		if l, offered := d.poll(changed); offered {
			if d.install(l, nil) || d.lives() != life {
				return
			}
		}
	}
	if d.fault == "no MQTT" && elf == newELF || !d.pause(2*time.Second, life) {
		return
	}
	d.connect()
	if d.fault == "loses a tool" && elf == newELF {
		d.lists("fewer tools")
	}
	if d.pause(time.Second, life) {
		d.w.current().Observe(rollout.OfListing(d.id, fleet.ToolListing{At: time.Now().UTC(),
			ELFSHA256: d.registered().ELFSHA256}))
	}
}

// lists changes the inventory of the device.
func (d *device) lists(inventory string) {
	d.w.store.mu.Lock()
	defer d.w.store.mu.Unlock()
	row := d.w.store.devices[d.id]
	row.InventoryID = inventory
	d.w.store.devices[d.id] = row
}

func (d *device) registered() fleet.Device {
	d.w.store.mu.Lock()
	defer d.w.store.mu.Unlock()
	return d.w.store.devices[d.id]
}

func (d *device) poll(firstBoot bool) (l firmware.Link, offered bool) {
	now := time.Now().UTC()
	version := "2.0.0"
	if d.running() == newELF {
		version = "2.0.1"
	}
	p := enrolment.BootPoll{Device: d.id, At: now, ELFSHA256: d.running(), Version: version,
		Layout: &fleet.FlashLayout{SlotSize: 4 << 20, FreeHeap: 90 << 10}}
	if d.fault == "leaks" && firstBoot {
		p.Layout.FreeHeap = 10 << 10
	}
	d.w.store.mu.Lock()
	row := d.w.store.devices[d.id]
	row.ELFSHA256, row.Version, row.LastPoll = p.ELFSHA256, version, &now
	d.w.store.polls[d.id] = row
	d.w.store.mu.Unlock()
	time.AfterFunc(200*time.Millisecond, func() { d.w.Stored(context.Background(), d.id) })
	offer := d.w.current().Poll(context.Background(), p, firstBoot)
	if offer == nil {
		return l, false
	}
	if firstBoot {
		d.w.violated("offer to %s on the first boot of a build", d.id)
	}
	d.w.order(*offer)
	return d.w.linkOf(offer.URL), true
}

func (d *device) connect() {
	d.w.mu.Lock()
	d.w.epochs++
	epoch := d.w.epochs
	d.w.mu.Unlock()
	d.mu.Lock()
	d.online, d.epoch, d.since = true, epoch, time.Now().UTC()
	d.mu.Unlock()
	d.emit(fleet.EvidenceConnect)
}
