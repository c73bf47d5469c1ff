package rollout

import (
	"context"
	"sync/atomic"
	"time"

	"fleetd/fleet"
	"fleetd/fleet/campaign"
	"fleetd/fleet/enrolment"
	"fleetd/fleet/firmware"
)

// offerTimeout is how long a boot poll waits for the engine. The device does not start before
// the reply.
const offerTimeout = 2 * time.Second

// freshPoll is the maximum age of a poll when its offer is stored: the rest of the timeout is
// for the database.
const freshPoll = offerTimeout / 2

// pollRequest is a boot poll that waits for a decision on whether to offer firmware.
type pollRequest struct {
	poll      enrolment.BootPoll
	firstBoot bool
	at        time.Time
	restarted bool                      // the engine ordered the restart, and reserved a place
	reply     chan *fleet.FirmwareOffer // has room for the offer
	settled   atomic.Bool               // answered, or no longer awaited
}

// answer sends the offer, and reports whether the poll still waits for it.
func (r *pollRequest) answer(offer *fleet.FirmwareOffer) bool {
	if !r.settled.CompareAndSwap(false, true) {
		return false
	}
	r.reply <- offer
	return true
}

// Poll handles a boot poll as evidence, and returns the firmware to offer, or nil unless an
// offer is due and stored. The poll must come from an enrolled device with its own Client-Id.
// Poll waits at most 2 s, or until ctx ends, and only for devices that campaigns wait for; for
// all others it returns immediately.
func (e *Engine) Poll(ctx context.Context, p enrolment.BootPoll, firstBoot bool) *fleet.FirmwareOffer {
	if !e.index.has(p.Device) {
		return nil
	}
	r := &pollRequest{poll: p, firstBoot: firstBoot, at: e.now(), reply: make(chan *fleet.FirmwareOffer, 1)}
	hopeless := !e.index.waits(p.Device) || e.stuck.Load() // evidence only, or the database is away
	r.settled.Store(hopeless)
	e.inbox.put(input{device: p.Device, poll: r,
		seen: campaign.Observation{At: p.At, Kind: fleet.EvidenceBootPoll, ELF: p.ELFSHA256, Version: p.Version}})
	if hopeless {
		return nil
	}
	timeout := time.NewTimer(offerTimeout)
	defer timeout.Stop()
	select {
	case offer := <-r.reply:
		return offer
	case <-ctx.Done():
	case <-timeout.C:
	}
	if r.settled.CompareAndSwap(false, true) {
		return nil
	}
	return <-r.reply // it came at the last moment, and is stored as made
}

// observePoll handles a boot poll as evidence, and queues the poll if the reply may be an offer.
func (l *loop) observePoll(in input) {
	r := in.poll
	for _, d := range l.byDevice[in.device] {
		if layout := r.poll.Layout; layout != nil && layout.FreeHeap > 0 {
			d.heap = layout.FreeHeap
		}
		r.restarted = r.restarted || d.restarting
	}
	l.observeDevice(in.device, in.seen)
	if d := l.waiting(in.device); d != nil && !r.settled.Load() {
		if s := l.offerSituation(d, r); campaign.DecideOffer(s).Offer {
			l.polls = append(l.polls, r)
			if r.restarted {
				d.camp.picked++ // the place is reserved until the poll is answered
			}
			return
		}
	}
	r.answer(nil)
}

// waiting returns the deployment of the device that waits to be notified.
func (l *loop) waiting(id fleet.DeviceID) *deployment {
	for _, d := range l.byDevice[id] {
		if d.State == campaign.DeploymentQueued {
			return d
		}
	}
	return nil
}

// offerSituation returns the data from memory; the caller adds the registry's later.
func (l *loop) offerSituation(d *deployment, r *pollRequest) campaign.OfferSituation {
	c := d.camp
	return campaign.OfferSituation{
		Bound: true, Mode: c.Plan.Mode, State: d.State, Running: c.State == campaign.Running, WindowOpen: true,
		Due: (d.NotBefore == nil || !l.now.Before(*d.NotBefore)) && !d.busy && !l.activeElsewhere(d), FirstBoot: r.firstBoot,
		OffersInHour: l.offers.count(d.Device, l.now), DeviceVersion: r.poll.Version, ImageVersion: d.ToVersion,
		SameBuild: r.poll.ELFSHA256 != "" && r.poll.ELFSHA256 == d.TargetELF, AllowOlder: c.Plan.AllowDowngrade,
		ForcedBefore: d.Force && d.Offers > 0,
	}
}

// answerPolls decides on the boot polls whose reply may be an offer.
func (l *loop) answerPolls(ctx context.Context, room *int) (notifications []notification) {
	asked, requests := l.askedFor()
	if len(asked) == 0 {
		return nil
	}
	devices, quarantines, err := l.facts(ctx, asked)
	if err != nil {
		l.trouble(ctx, nil, err)
	}
	for _, d := range asked {
		r := requests[d]
		if err != nil || *room <= 0 || !l.hasPlace(d, r) {
			l.noPlace(d, r)
			continue
		}
		force, ok := l.decideOffer(ctx, d, r, devices[d.Device], quarantines)
		if !ok {
			l.free(d, r)
			r.answer(nil)
			continue
		}
		*room--
		notifications = append(notifications, l.offer(d, r, devices[d.Device], force))
	}
	return notifications
}

// askedFor returns the deployments whose polls wait for a reply, with one poll each, and
// answers all other polls without an offer.
func (l *loop) askedFor() (asked []*deployment, requests map[*deployment]*pollRequest) {
	polls := l.polls
	l.polls = nil
	requests = make(map[*deployment]*pollRequest, len(polls))
	for _, r := range polls {
		d := l.waiting(r.poll.Device)
		if d == nil || requests[d] != nil || l.e.now().Sub(r.at) > freshPoll {
			r.answer(nil) // a place reserved for it becomes free at the end of the turn
			continue
		}
		asked = append(asked, d)
		requests[d] = r
	}
	return asked, requests
}

// offer reserves a place for the device that is about to be offered its image.
func (l *loop) offer(d *deployment, r *pollRequest, device fleet.Device, force bool) notification {
	if !r.restarted { // otherwise it already has one
		d.camp.picked++
		d.camp.pace.AllowN(l.now, 1)
	}
	l.unplace(d)
	d.Force = force
	recordFacts(d, device)
	return notification{d: d, mode: firmware.ModePull, poll: r}
}

// hasPlace reports whether one more device may be notified. A restarted device has a reserved
// place, unless other devices returned to flight meanwhile.
func (l *loop) hasPlace(d *deployment, r *pollRequest) bool {
	if r.restarted {
		return d.camp.inFlight < d.camp.Plan.MaxInFlight
	}
	return l.places(d.camp, 1) > 0
}

// noPlace answers, without an offer, a device that could have been offered its firmware. A
// device that restarted for it may be ordered to restart again.
func (l *loop) noPlace(d *deployment, r *pollRequest) {
	l.free(d, r)
	r.answer(nil)
	if r.restarted && d.Reason.Is(campaign.ReasonAwaitsPollAfter) {
		d.Reason = fleet.Reason{}
		l.mark(d)
	}
}

// free releases the place that was reserved for a restarted device.
func (l *loop) free(d *deployment, r *pollRequest) {
	if r.restarted {
		d.camp.picked--
	}
}

// decideOffer applies the rules to all the data.
func (l *loop) decideOffer(ctx context.Context, d *deployment, r *pollRequest, device fleet.Device,
	quarantines map[fleet.DeviceID]campaign.Quarantine) (force, ok bool) {
	device.ELFSHA256, device.Version = r.poll.ELFSHA256, r.poll.Version // the registry gets the poll later
	if r.poll.Layout != nil {
		device.Layout = r.poll.Layout
	}
	rights, err := l.rightsOf(ctx, d.camp)
	if err != nil {
		return false, false
	}
	if why := rights.Outside(device); !why.Is("") {
		l.leaveOut(d, why)
		return false, false
	}
	reason, err := l.unfit(ctx, d, device, quarantines)
	if err != nil {
		l.trouble(ctx, d.camp, err)
		return false, false
	}
	s := l.offerSituation(d, r)
	s.Fits, s.Held = reason, device.Hold.Active(l.now)
	s.WindowOpen = l.windowOpen(d, l.zoneOf(d, device))
	decision := campaign.DecideOffer(s)
	return decision.Force, decision.Offer
}

// notifyByPoll answers the poll with the stored offer.
func (l *loop) notifyByPoll(t notification) {
	d := t.d
	l.offers.add(d.Device, l.now)
	offer := &fleet.FirmwareOffer{Version: d.ToVersion, URL: t.url, Force: d.Force, SHA256: d.Image, Size: d.ImageSize,
		Job: fleet.UpgradeJobName(d.ID, d.Attempt), Manifest: t.image.Manifest, Signature: t.image.ManifestSignature}
	if !t.poll.answer(offer) {
		l.o.Log.Warn("an offer came too late for its boot poll; it fails by its timer", "device", d.Device, "deployment",
			d.ID)
	}
}

// offerLog lists when devices were last offered firmware.
type offerLog map[fleet.DeviceID][]time.Time

const offerHour = time.Hour

func (o offerLog) count(id fleet.DeviceID, now time.Time) int {
	times := o[id]
	for len(times) > 0 && now.Sub(times[0]) >= offerHour {
		times = times[1:]
	}
	if len(times) == 0 {
		delete(o, id)
	} else {
		o[id] = times
	}
	return len(times)
}

func (o offerLog) add(id fleet.DeviceID, at time.Time) { o[id] = append(o[id], at) }

// learn reads the offers that an earlier engine made.
func (o offerLog) learn(ctx context.Context, l *loop, all []*deployment) error {
	if l.now.Sub(l.startedAt) > offerHour || len(all) == 0 {
		return nil
	}
	ids := make([]fleet.DeviceID, len(all))
	for i, d := range all {
		ids[i] = d.Device
	}
	counts, err := l.o.Store.OffersSince(ctx, ids, l.now.Add(-offerHour))
	if err != nil {
		return err
	}
	for id, n := range counts {
		for len(o[id]) < n {
			o.add(id, l.now)
		}
	}
	return nil
}
