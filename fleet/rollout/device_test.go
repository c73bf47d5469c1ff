package rollout_test

import (
	"context"
	"sync"
	"time"

	"fleetd/fleet"
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

func (d *device) observed(l fleet.FirmwareLink, kind fleet.EvidenceKind, bytes int64) {
	d.w.current().Download(l.Deployment, fleet.Observation{At: time.Now().UTC(), Kind: kind, Attempt: l.Attempt, Bytes: bytes})
}

// install is what the device does when it is told of an image. told is nil if
// it was by a boot poll.
func (d *device) install(l fleet.FirmwareLink, told func(fleet.EvidenceKind, string)) {
	d.mu.Lock()
	d.tries++
	try := d.tries
	d.mu.Unlock()
	time.Sleep(4 * time.Second)
	if d.fault == "silent" {
		if told != nil {
			told(fleet.EvidenceAnswer, "true")
		}
		return
	}
	if !d.download(l, try) {
		return
	}
	switch d.fault {
	case "refuses image":
		time.Sleep(3 * time.Second)
		told(fleet.EvidenceLateAnswer, "true")
		return
	case "refuses image silently":
		return
	}
	time.Sleep(time.Second)
	d.leave(true)
	time.Sleep(6 * time.Second)
	switch d.fault {
	case "dead":
	case "rolled back":
		d.boot(oldELF)
	case "wrong build":
		d.boot(otherELF)
	case "slow":
		time.Sleep(20 * time.Minute)
		d.boot(newELF)
	case "rolled back later":
		d.boot(newELF)
		time.Sleep(20 * time.Second)
		d.leave(false)
		time.Sleep(3 * time.Second)
		d.boot(oldELF)
	default:
		d.boot(newELF)
	}
}

func (d *device) download(l fleet.FirmwareLink, try int) bool {
	if !d.w.store.served(l.Deployment, l.Attempt) {
		return false
	}
	d.observed(l, fleet.EvidenceGet, 0)
	const pieces = 8
	for i := range int64(pieces) {
		time.Sleep(time.Second)
		sent := imageSize / pieces * (i + 1)
		cut := d.fault == "cut" || d.fault == "cut once" && try == 1
		if !d.w.store.served(l.Deployment, l.Attempt) || cut && i == 3 {
			d.observed(l, fleet.EvidenceCut, sent)
			return false
		}
		if d.fault == "stalls" && i == 3 {
			return false
		}
		if i == pieces-1 {
			d.observed(l, fleet.EvidenceDownloaded, imageSize)
			break
		}
		d.observed(l, fleet.EvidenceBytes, sent)
	}
	return true
}

func (d *device) reboot(after time.Duration) {
	time.Sleep(after)
	d.leave(true)
	time.Sleep(5 * time.Second)
	d.boot(d.running())
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
	d.w.current().Evidence(d.id, fleet.Evidence{At: time.Now().UTC(), Kind: kind})
}

// boot starts the device with a build: it polls, connects, and lists its tools.
func (d *device) boot(elf string) {
	d.mu.Lock()
	changed := d.elf != elf
	d.elf = elf
	d.mu.Unlock()
	if d.fault != "no poll" {
		if l, offered := d.poll(changed); offered {
			d.install(l, nil)
			if d.running() == newELF {
				return
			}
		}
	}
	if d.fault == "no MQTT" {
		return
	}
	time.Sleep(2 * time.Second)
	d.connect()
	time.Sleep(time.Second)
	d.w.current().Listed(d.id, fleet.ToolListing{At: time.Now().UTC(), ELFSHA256: d.registered().ELFSHA256})
}

func (d *device) registered() fleet.Device {
	d.w.store.mu.Lock()
	defer d.w.store.mu.Unlock()
	return d.w.store.devices[d.id]
}

func (d *device) poll(firstBoot bool) (l fleet.FirmwareLink, offered bool) {
	now := time.Now().UTC()
	version := "2.0.0"
	if d.running() == newELF {
		version = "2.0.1"
	}
	p := fleet.BootPoll{Device: d.id, At: now, ELFSHA256: d.running(), Version: version, Layout: &fleet.FlashLayout{SlotSize: 4 << 20, FreeHeap: 90 << 10}}
	if d.fault == "leaks" && firstBoot {
		p.Layout.FreeHeap = 10 << 10
	}
	d.w.store.mu.Lock()
	row := d.w.store.devices[d.id]
	row.ELFSHA256, row.Version, row.LastPoll = p.ELFSHA256, version, &now
	d.w.store.devices[d.id] = row
	d.w.store.mu.Unlock()
	offer := d.w.current().Poll(context.Background(), p, firstBoot)
	if offer == nil {
		return l, false
	}
	if firstBoot {
		d.w.violated("offer to %s on the first boot of a build", d.id)
	}
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
	d.w.current().Evidence(d.id, fleet.Evidence{At: time.Now().UTC(), Kind: fleet.EvidenceConnect})
}
