package matrix

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"fleetd/broker/sim"
	"fleetd/fleet"
)

// A reach is the kind of object that an operation concerns.
type reach int

const (
	onDevice  reach = iota + 1 // a device, or an object that belongs to one, of either side
	onFleet                    // an object that belongs to no device
	somewhere                  // open to a principal that has the role on some device
)

// A thing is an object that was set up for an action: its ids.
type thing map[string]string

// A request is a request of a principal.
type request struct {
	args  map[string]string // of the path
	query string
	body  any
}

// A row describes one operation: who may do it, what it may write, and a request that has
// an effect.
type row struct {
	need   fleet.Role
	reach  reach
	models models   // whether principals of kind model may, too
	manage bool     // needs every device and every tool: it creates or changes principals
	tool   string   // tool that it calls on the device
	of     string   // tool whose record it reads: a model that may never call it does not find it
	runs   string   // tool that it runs on the device, called by another principal
	partly bool     // answers 2xx even if none of it may be done
	writes []string // tables besides audit_entries
	inert  string   // why the tables show no effect: then writes is empty or may stay unused
	absent bool     // a read of an object that need not exist

	ask  func(w *world, p *principal, s side) request
	undo func(w *world, s side, r request) // runs after the operation
}

// models is whether a language model may, if its role suffices.
type models int

const (
	never models = iota
	own          // objects that it made
	too          // like every principal
)

const (
	viewer     = fleet.RoleViewer
	asOperator = fleet.RoleOperator
	admin      = fleet.RoleAdmin
)

// keep sets a thing up once, and again after an action on it.
func (w *world) keep(use string, s side, set func() thing) thing {
	key := string(s) + " " + use
	if _, ok := w.kept[key]; !ok {
		w.kept[key] = set()
		for _, id := range w.kept[key] {
			w.owner[id] = s
		}
	}
	w.used = append(w.used, key)
	return w.kept[key]
}

// device returns requests about a device that never connects and is not reused after an
// action on it.
func device(use string, body func(w *world) any) func(w *world, p *principal, s side) request {
	return func(w *world, _ *principal, s side) request {
		r := request{args: map[string]string{"id": string(w.spare(s, use))}}
		if body != nil {
			r.body = body(w)
		}
		return r
	}
}

// mqtt5Device requests the credentials of a device that root created.
func mqtt5Device(w *world, _ *principal, s side) request {
	return request{args: w.keep("mqtt5", s, func() thing {
		id := w.must("POST", "/devices", obj{"id": fmt.Sprintf("lamp-%d", w.count())}).str("device_id")
		w.dress(fleet.DeviceID(id), s)
		return thing{"id": id}
	})}
}

// spare returns a device for one action.
func (w *world) spare(s side, use string) fleet.DeviceID {
	return fleet.DeviceID(w.keep("device "+use, s, func() thing {
		delete(w.paper, string(s)+" "+use)
		return thing{"id": string(w.enrolled(s, use))}
	})["id"])
}

// waiting returns a device that is waiting to join, with the tags of its side.
func (w *world) waiting(s side, use string) thing {
	return w.keep("waiting "+use, s, func() thing {
		d := w.fresh(lonely)
		w.dress(d.id, s)
		return thing{"id": string(d.id), "code": d.code}
	})
}

// made returns requests about an object that root creates over REST. Rows of one use
// share the object.
func made(use, path string, create, body func(*world, side) any) func(*world, *principal, side) request {
	return func(w *world, _ *principal, s side) request {
		t := w.keep("made "+use, s, func() thing {
			return thing{"id": w.must("POST", path, create(w, s)).str("id")}
		})
		r := request{args: map[string]string{"id": t["id"]}}
		if body != nil {
			r.body = body(w, s)
		}
		return r
	}
}

// just returns requests with a body.
func just(body func(w *world, s side) any) func(w *world, p *principal, s side) request {
	return func(w *world, _ *principal, s side) request { return request{body: body(w, s)} }
}

// read requests an object of a side.
func read(w *world, _ *principal, s side) request {
	f := w.fixture[s]
	return request{args: f, query: "?device=" + f["device"] + "&from=" + f["inventory"] + "&to=" + f["inventory"]}
}

func reads(reach reach, need fleet.Role) row {
	return row{need: need, reach: reach, models: too, ask: read}
}

// logPart returns a row for reading a part of the sealed record.
func logPart(need fleet.Role) row {
	return row{need: need, reach: onFleet, models: too, ask: func(*world, *principal, side) request {
		return request{args: map[string]string{"level": "0", "n": "0", "entry": "0"}, query: "?width=1"}
	}}
}

// record returns a row for reading the outcome of a call of the tool.
func record(tool string) row {
	r := reads(onDevice, viewer)
	r.of = tool
	return r
}

// catalogued is a row for reading a tool that all devices list.
var catalogued = row{need: viewer, reach: somewhere, models: too, of: "self.get_device_status", ask: func(*world, *principal, side) request {
	return request{args: map[string]string{"name": "self.get_device_status"}}
}}

// waitingTool is the name of a tool with a definition that waits for a person.
const waitingTool = "self.waiting"

// waitingDefinition returns the digest of the definition.
func (w *world) waitingDefinition() string {
	digest := strings.Repeat("cd", 32)
	w.exec(`INSERT INTO tool_definitions (tool, digest, description, input_schema, audience, waiting, device_id, first_seen)
		VALUES ($1, decode($2, 'hex'), '', '{}', 'model', 'new', 'd', now())
		ON CONFLICT (tool, digest) DO UPDATE SET waiting = 'new'`, waitingTool, digest)
	return digest
}

// rows has a row for every operation of the document.
var rows = map[string]row{
	// Reads.
	"list-devices": reads(somewhere, viewer), "export-devices": reads(somewhere, viewer), "list-calls": reads(somewhere, viewer),
	"list-campaigns": reads(somewhere, viewer), "list-fanouts": reads(somewhere, viewer),
	"list-quarantines": reads(somewhere, viewer), "list-snapshots": reads(somewhere, viewer), "get-stats": reads(somewhere, viewer),
	"list-audit": people(reads(somewhere, viewer)), "export-audit": people(reads(somewhere, viewer)),
	"list-approvals":     reads(somewhere, viewer),
	"list-conversations": reads(somewhere, viewer), "list-waiting-devices": people(reads(somewhere, viewer)),
	"list-images": reads(somewhere, viewer), "get-image": reads(somewhere, viewer), "fit-image": reads(somewhere, viewer),
	"get-image-layout": absent(reads(somewhere, viewer)), "list-releases": reads(somewhere, viewer),
	"get-release": reads(somewhere, viewer), "list-floors": reads(somewhere, viewer),
	"fit-release": reads(somewhere, viewer), "list-filters": reads(somewhere, viewer),
	"stream-events": {need: viewer, reach: somewhere, models: too, inert: "TestStreams follows streams"},
	"get-device":    reads(onDevice, viewer), "list-tools": reads(onDevice, viewer), "list-inventories": reads(onDevice, viewer),
	"diff-inventories": reads(onDevice, viewer), "list-firmware": reads(onDevice, viewer),
	"get-facts": absent(reads(onDevice, viewer)), "list-device-calls": reads(onDevice, viewer), "get-call": record("self.get_device_status"),
	"get-fanout": record("self.get_device_status"), "list-fanout-answers": record("self.get_device_status"),
	"export-fanout-answers": record("self.get_device_status"), "get-snapshot": record("self.screen.snapshot"),
	"get-conversation": reads(onDevice, viewer), "list-timeline": reads(onDevice, viewer), "get-campaign": reads(onDevice, viewer),
	"list-deployments": reads(onDevice, viewer), "get-deployment": reads(onDevice, viewer),
	"list-device-deployments": reads(onDevice, viewer), "get-outlook": reads(onDevice, viewer),
	"list-core-dumps": reads(onDevice, viewer), "get-core-dump": record(fleet.ToolCoreDumpInfo),
	"get-core-dump-content": people(absent(reads(onDevice, asOperator))), "get-vitals": absent(reads(onDevice, viewer)),
	"list-vitals": absent(reads(onDevice, viewer)), "list-jobs": reads(onDevice, viewer),
	"get-config": absent(reads(onDevice, viewer)), "get-approval": record(asked),
	"list-tokens": people(reads(onFleet, viewer)), "list-operators": people(reads(onFleet, viewer)), "list-tool-pins": reads(onFleet, viewer),
	"list-tool-quarantines": reads(onFleet, viewer),
	"list-catalogue":        reads(somewhere, viewer), "get-catalogue-tool": catalogued, "diff-catalogue-tool": catalogued,
	"get-tool-waits": people(reads(onFleet, viewer)),
	"list-policies":  reads(onFleet, viewer), "list-enrolment-rules": people(reads(onFleet, viewer)),
	"get-enrolment-rule": people(reads(onFleet, viewer)), "list-serials": people(reads(onFleet, viewer)), "get-key-rotation": people(reads(onFleet, viewer)),
	"list-key-rotation-devices": people(reads(onFleet, viewer)), "list-alerts": reads(onFleet, viewer), "list-silences": reads(onFleet, viewer), "get-alert": reads(onFleet, viewer),
	"get-alert-thresholds": reads(onFleet, viewer), "list-upstreams": people(reads(onFleet, viewer)), "get-upstream": people(reads(onFleet, viewer)),
	"match-upstream": people(reads(onFleet, viewer)), "get-alert-mail": people(reads(onFleet, admin)), "list-webhooks": people(reads(onFleet, admin)),
	"list-log-streams": people(reads(onFleet, admin)), "get-log-stream": people(reads(onFleet, admin)),
	"list-redaction-rules": people(reads(onFleet, admin)), "get-redaction-rule": people(reads(onFleet, admin)),
	"list-endpoints": people(reads(onFleet, admin)), "get-endpoint": people(reads(onFleet, admin)),
	"list-plugins": people(reads(onFleet, admin)), "get-plugin": people(reads(onFleet, admin)), "get-plugin-log": people(reads(onFleet, admin)),
	"get-record": people(reads(onFleet, viewer)), "get-verification": people(absent(reads(onFleet, viewer))),
	"get-checkpoint": people(absent(reads(onFleet, viewer))), "get-tile": people(absent(logPart(viewer))),
	"get-bundle": people(absent(logPart(admin))), "stream-record": people(reads(onFleet, admin)), "prove-entry": people(absent(logPart(viewer))),
	"start-verification": people(row{need: admin, reach: onFleet, inert: "it changes nothing",
		ask: just(func(*world, side) any { return obj{} })}),
	"get-cluster": people(reads(onFleet, viewer)), "get-system": people(reads(onFleet, admin)), "list-operator-sessions": {need: admin, reach: onFleet, manage: true, ask: read},

	// Devices.
	"update-device": {need: asOperator, reach: onDevice, writes: list("devices"), ask: device("update", func(w *world) any {
		return obj{"notes": w.name(inside)}
	})},
	"hold-device": {need: asOperator, reach: onDevice, writes: list("devices"),
		ask: device("hold", func(*world) any { return obj{"reason": "hands in machine"} })},
	"release-device": {need: asOperator, reach: onDevice, writes: list("devices"),
		ask: func(w *world, p *principal, s side) request {
			id := w.keep("held", s, func() thing {
				id := string(w.enrolled(s, "held"))
				w.must("POST", "/devices/"+id+"/hold", obj{"reason": "hands in machine"})
				return thing{"id": id}
			})
			return request{args: id}
		}},
	"create-device": {need: admin, reach: onFleet, writes: list("devices"),
		ask: just(func(w *world, s side) any { return obj{"id": fmt.Sprintf("lamp-%d", w.count()), "name": w.name(s)} })},
	"reissue-credentials": {need: asOperator, reach: onDevice, writes: list("devices"), ask: mqtt5Device},
	"revoke-credentials":  {need: asOperator, reach: onDevice, writes: list("devices"), ask: mqtt5Device},
	"retire-device":       {need: admin, reach: onDevice, writes: list("devices"), ask: device("retire", nil)},
	"replace-device": {need: admin, reach: onDevice, writes: list("devices"),
		ask: func(w *world, p *principal, s side) request {
			return request{args: map[string]string{"id": string(w.spare(s, "replaced"))},
				body: obj{"successor": w.spare(s, "successor")}}
		}},
	"reject-device": {need: asOperator, reach: onDevice, writes: list("devices"), ask: device("reject", nil)},
	"approve-device": {need: asOperator, reach: onDevice, writes: list("devices"),
		ask: func(w *world, p *principal, s side) request { return request{args: w.waiting(s, "approve")} }},
	"claim-device": {need: asOperator, reach: onDevice, writes: list("devices"),
		ask: func(w *world, p *principal, s side) request {
			return request{body: obj{"code": w.waiting(s, "claim")["code"]}}
		}},
	"resolve-conflict-device": {need: asOperator, reach: onDevice, inert: "no device has a conflict", writes: list("devices"),
		ask: device("conflict", func(*world) any { return obj{"act": "dismiss"} })},
	"clear-quarantine": {need: asOperator, reach: onDevice, writes: list("quarantines"),
		ask: func(w *world, p *principal, s side) request {
			return request{args: w.keep("quarantined", s, func() thing {
				id := w.enrolled(s, "quarantined")
				w.exec(`INSERT INTO quarantines (device_id, reason_code, since, until)
					VALUES ($1, 'failures', now(), now() + '1 hour')
					ON CONFLICT (device_id) DO UPDATE SET until = excluded.until, cleared_at = NULL`, string(id))
				return thing{"id": string(id)}
			})}
		}},
	"bulk-devices": {need: asOperator, reach: onDevice, writes: list("devices"),
		ask: func(w *world, p *principal, s side) request {
			return request{body: obj{"act": "tag", "tags": []string{"more"}, "devices": []fleet.DeviceID{w.spare(s, "bulk")},
				"confirm": 1}}
		}},
	"import-devices": {need: asOperator, reach: onDevice, partly: true, writes: list("devices"),
		ask: func(w *world, p *principal, s side) request {
			id := w.spare(s, "import")
			csv := "id,notes\n" + string(id) + ",imported " + w.name(s) + "\n"
			shown := w.rest(p.secret, "POST", "/devices/import", obj{"csv": csv})
			return request{body: obj{"csv": csv, "digest": shown.str("digest")}}
		}},

	// Calls.
	"make-call": {need: asOperator, reach: onDevice, models: too, tool: "self.get_device_status", writes: list("calls"),
		ask: callOf("self.get_device_status", obj{})},
	"make-call/changing": {need: asOperator, reach: onDevice, models: too, tool: "self.audio_speaker.set_volume",
		writes: list("calls"), ask: callOf("self.audio_speaker.set_volume", obj{"volume": 31})},
	"make-call/user-only": {need: asOperator, reach: onDevice, models: too, tool: "self.get_system_info",
		writes: list("calls"), ask: callOf("self.get_system_info", obj{})},
	"create-fanout": {need: asOperator, reach: onDevice, models: too, tool: "self.get_device_status",
		writes: list("calls", "fanouts", "fanout_targets"), ask: fanOutOf("self.get_device_status", obj{}),
		undo: (*world).fanOutEnds},
	"create-fanout/changing": {need: asOperator, reach: onDevice, models: too, tool: "self.audio_speaker.set_volume",
		writes: list("calls", "fanouts", "fanout_targets"),
		ask:    fanOutOf("self.audio_speaker.set_volume", obj{"volume": 32}), undo: (*world).fanOutEnds},
	"cancel-fanout": {need: asOperator, reach: onDevice, models: own, writes: list("fanouts", "calls", "fanout_targets"),
		ask: func(w *world, p *principal, s side) request {
			return request{args: w.keep("waiting fan-out", s, func() thing { return thing{"id": w.waitingFanOut(w.root, s)} })}
		}},
	"cancel-fanout/own": {need: asOperator, reach: onDevice, models: too, writes: list("fanouts", "calls", "fanout_targets"),
		tool: "self.get_device_status", ask: func(w *world, p *principal, s side) request {
			return request{args: thing{"id": w.waitingFanOut(p.secret, s)}}
		}},
	"retry-fanout": {need: asOperator, reach: onDevice, models: too, tool: "self.get_device_status",
		writes: list("fanouts", "calls", "fanout_targets"), ask: func(w *world, p *principal, s side) request {
			t := w.keep("failed fan-out", s, func() thing {
				f := w.must("POST", "/fanouts", obj{"devices": []fleet.DeviceID{w.live[s]}, "tool": "self.get_device_status",
					"confirm": 1})
				t := thing{"id": f.str("id")}
				w.fanOutEnds(s, request{args: t})
				w.exec(`UPDATE calls SET state = 'timed_out', failure = 'timed_out' WHERE fanout_id = $1`, t["id"])
				w.settleDevices()
				return t
			})
			return request{args: t, body: obj{"confirm": 1}}
		}, undo: (*world).fanOutEnds},
	"interrupt-call": {need: asOperator, reach: onDevice, inert: "the call has ended", writes: list("calls"),
		ask: func(w *world, p *principal, s side) request { return request{args: thing{"id": w.fixture[s]["call"]}} }},
	"cancel-call": {need: asOperator, reach: onDevice, tool: late, writes: list("calls", "call_waits"),
		ask: func(w *world, p *principal, s side) request { return request{args: w.lateCall(s)} }},
	"cancel-call/own": {need: asOperator, reach: onDevice, models: too, tool: late, writes: list("calls", "call_waits"),
		ask: func(w *world, p *principal, s side) request { return request{args: w.ownLateCall(p, s)} }},
	"fetch-core-dump": {need: asOperator, reach: onDevice, inert: "the board has no tool for it", writes: list("calls"),
		ask: device("core dump", func(*world) any { return obj{} })},
	"delete-core-dump": {need: asOperator, reach: onDevice, writes: list("core_dumps"),
		ask: func(w *world, p *principal, s side) request {
			return request{args: w.keep("core dump", s, func() thing { return thing{"id": w.coreDump(s)} })}
		}},
	"approve-call": {need: asOperator, reach: onDevice, tool: asked, runs: asked, writes: list("approvals", "calls"), ask: approvalOf(nil)},
	"deny-call": {need: asOperator, reach: onDevice, writes: list("approvals", "calls"),
		ask: approvalOf(obj{"reason": "too bright"})},
	"withdraw-call/own": {need: asOperator, reach: onDevice, models: too, tool: asked, writes: list("approvals", "calls"),
		ask: func(w *world, p *principal, s side) request {
			c := w.rest(p.secret, "POST", "/devices/"+string(w.live[s])+"/calls", obj{"tool": asked,
				"arguments": obj{"theme": "dark"}, "purpose": w.name(s)})
			id := cmp.Or(c.str("approval_id"), uuid.NewString())
			w.owner[id] = s
			return request{args: thing{"id": id}}
		}},
	"withdraw-call": {need: asOperator, reach: onDevice, writes: list("approvals", "calls"), inert: "only who asked may",
		ask: approvalOf(nil)},

	// Schedules. A schedule of a principal with a filter stays within it, whatever its query.
	"get-history": reads(somewhere, viewer), "list-past-devices": reads(somewhere, viewer),
	"count-past-devices": reads(somewhere, viewer), "list-past-changes": people(reads(somewhere, viewer)),
	"compare-campaign": people(reads(onDevice, viewer)), "compare-fanout": people(record("self.get_device_status")),
	"list-places":  reads(somewhere, viewer),
	"get-trends":   people(reads(somewhere, viewer)),
	"get-changes":  people(reads(somewhere, viewer)),
	"get-adoption": reads(somewhere, viewer), "list-device-states": reads(onDevice, viewer),
	"list-schedules": people(reads(somewhere, viewer)), "get-schedule": people(record("self.get_device_status")),
	"list-schedule-runs": people(record("self.get_device_status")),
	"create-schedule": {need: asOperator, reach: somewhere, inert: "a token without the tool is refused",
		writes: list("schedules"), ask: just(ownNightly)},
	"preview-schedule": {need: asOperator, reach: somewhere, inert: "nothing is kept", ask: just(ownNightly)},
	"update-schedule": {need: asOperator, reach: onDevice, tool: "self.get_device_status", writes: list("schedules"),
		ask: made("schedule", "/schedules", nightly, func(w *world, s side) any { return obj{"name": w.name(s)} })},
	"pause-schedule": {need: asOperator, reach: onDevice, writes: list("schedules"),
		ask:  made("schedule to pause", "/schedules", nightly, func(*world, side) any { return obj{} }),
		undo: func(w *world, _ side, r request) { w.rest(w.root, "POST", "/schedules/"+r.args["id"]+"/resume", nil) }},
	"resume-schedule": {need: asOperator, reach: onDevice, inert: "it is not paused", writes: list("schedules"),
		ask: made("schedule to resume", "/schedules", nightly, nil)},
	"run-schedule": {need: asOperator, reach: onDevice, tool: "self.get_device_status",
		writes: list("schedules", "schedule_runs", "fanouts", "fanout_targets", "calls"),
		ask:    made("schedule to run", "/schedules", nightly, nil),
		undo:   func(w *world, s side, _ request) { w.fanOutEnds(s, request{}) }},
	"delete-schedule": {need: asOperator, reach: onDevice, inert: "a deleted row names only its maker",
		writes: list("schedules", "schedule_runs"),
		ask:    made("schedule to delete", "/schedules", nightly, nil)},

	// Campaigns.
	"create-campaign": {need: asOperator, reach: onDevice, models: too,
		writes: list("campaigns", "campaign_images", "waves", "deployments", "deployment_events"), ask: planOf},
	"dry-run-campaign": {need: viewer, reach: onDevice, models: too, inert: "nothing is kept", ask: planOf},
	"update-campaign": {need: asOperator, reach: onDevice, models: own,
		writes: list("campaigns", "campaign_images", "waves", "deployments", "deployment_events"),
		ask:    draftOf(func(w *world, s side) any { return obj{"name": w.name(s)} })},
	"discard-campaign": {need: asOperator, reach: onDevice, models: own, writes: campaignTables, ask: draftOf(nil)},
	"update-campaign/own": {need: asOperator, reach: onDevice, models: too, writes: campaignTables,
		ask: ownDraft(func(w *world, s side) any { return obj{"name": w.name(s)} })},
	"discard-campaign/own": {need: asOperator, reach: onDevice, models: too, writes: campaignTables, ask: ownDraft(nil)},
	"start-campaign/own": {need: asOperator, reach: onDevice, models: too, writes: campaignTables, ask: ownDraft(nil),
		undo: (*world).endCampaign},
	"start-campaign": {need: asOperator, reach: onDevice, models: own, writes: campaignTables, ask: draftOf(nil), undo: (*world).endCampaign},
	"approve-campaign": {need: asOperator, reach: onDevice, writes: campaignTables, ask: func(w *world, p *principal, s side) request {
		t := w.awaiting(s)
		return request{args: t, body: obj{"digest": t["digest"]}}
	}, undo: (*world).endCampaign},
	"deny-campaign": {need: asOperator, reach: onDevice, writes: campaignTables, ask: func(w *world, p *principal, s side) request {
		return request{args: w.awaiting(s), body: obj{"reason": "too early"}}
	}},
	"pause-campaign":    {need: asOperator, reach: onDevice, writes: campaignTables, ask: runningOf("pause", false), undo: (*world).endCampaign},
	"resume-campaign":   {need: asOperator, reach: onDevice, writes: campaignTables, ask: runningOf("resume", true), undo: (*world).endCampaign},
	"advance-campaign":  {need: asOperator, reach: onDevice, writes: campaignTables, ask: runningOf("advance", false), undo: (*world).endCampaign},
	"pull-now-campaign": {need: asOperator, reach: onDevice, writes: campaignTables, inert: "no device is connected", ask: runningOf("pull", false), undo: (*world).endCampaign},
	"abort-campaign":    {need: asOperator, reach: onDevice, writes: campaignTables, ask: runningOf("abort", false)},
	"abort-campaign/rollback": {need: asOperator, reach: onDevice, writes: campaignTables,
		ask: func(w *world, p *principal, s side) request {
			return request{args: w.running("roll back", s, false), body: obj{"rollback": true}}
		}},
	"retry-campaign": {need: asOperator, reach: onDevice, inert: "no device has failed", writes: campaignTables,
		ask: runningOf("retry", false)},
	"rollback-campaign": {need: asOperator, reach: onDevice, inert: "no device was updated", writes: campaignTables,
		ask: runningOf("back", false)},

	// Firmware.
	"upload-image": {need: asOperator, reach: onFleet, writes: list("images", "image_parts"),
		ask: func(w *world, p *principal, s side) request {
			return request{query: "?board=" + liveBoard, body: w.appImage(fmt.Sprintf("3.0.%d", w.count()))}
		}},
	"update-image": {need: asOperator, reach: onFleet, writes: list("images"),
		ask: imageOf("notes", func(w *world) any { return obj{"notes": w.name(inside)} })},
	"delete-image": {need: asOperator, reach: onFleet, writes: list("images", "image_parts"), ask: imageOf("delete", nil)},
	"revoke-image": {need: admin, reach: onFleet, writes: list("images"),
		ask: imageOf("revoke", func(*world) any { return obj{"reason": "bad"} })},
	"put-image-layout": {need: asOperator, reach: onFleet, writes: list("image_layouts", "image_parts"), inert: "no merged binary",
		ask: imageOf("layout", func(w *world) any { return []byte("not a merged binary") })},
	"sign-image": {need: asOperator, reach: onFleet, writes: list("images"), ask: imageOf("sign", nil), inert: "no signature"},
	"create-release": {need: asOperator, reach: onFleet, writes: list("releases", "release_images"),
		ask: just(func(w *world, s side) any {
			return obj{"images": []string{w.image}, "version": w.newVersion(), "draft": true}
		})},
	"update-release": {need: asOperator, reach: onFleet, writes: list("releases", "release_images"),
		ask: made("draft", "/releases", draftRelease, func(w *world, s side) any { return obj{"notes": w.name(s)} })},
	"release-release": {need: asOperator, reach: onFleet, writes: list("releases"),
		ask: made("draft", "/releases", draftRelease, nil)},
	"deprecate-release": {need: asOperator, reach: onFleet, writes: list("releases"),
		ask: made("release", "/releases", release, func(*world, side) any { return obj{"reason": "old"} })},
	"revoke-release": {need: admin, reach: onFleet, writes: list("releases", "images"),
		ask: made("release", "/releases", release, func(*world, side) any { return obj{"reason": "bad"} })},

	"set-floor": {need: admin, reach: onFleet, writes: list("board_floors"),
		ask: func(*world, *principal, side) request {
			return request{args: map[string]string{"board": "no-such-board"}, body: obj{"version": "1.0"}}
		}},
	"clear-floor": {need: admin, reach: onFleet, writes: list("board_floors"),
		ask: func(w *world, _ *principal, s side) request {
			return request{args: w.keep("floor", s, func() thing {
				w.must("PUT", "/floors/no-such-board", obj{"version": "1.0"})
				return thing{"board": "no-such-board"}
			})}
		}},

	// Settings and people.
	"create-filter": {need: asOperator, reach: onFleet, writes: list("filters"),
		ask: just(func(w *world, s side) any { return obj{"name": w.name(s), "q": "board:x"} })},
	"update-filter": {need: asOperator, reach: onFleet, writes: list("filters"),
		ask: made("filter", "/filters", savedFilter, func(w *world, s side) any { return obj{"name": w.name(s)} })},
	"delete-filter": {need: asOperator, reach: onFleet, writes: list("filters"), ask: made("filter", "/filters", savedFilter, nil)},
	"create-token": {need: admin, reach: onFleet, manage: true, writes: list("tokens"),
		ask: just(func(w *world, s side) any { return obj{"name": w.name(s), "role": "admin"} })},
	"revoke-token": {need: admin, reach: onFleet, writes: list("tokens"),
		ask: made("token", "/tokens", func(w *world, s side) any { return obj{"name": w.name(s), "role": "viewer"} }, nil)},
	"create-operator": {need: admin, reach: onFleet, manage: true, writes: list("operators"),
		ask: just(func(w *world, s side) any {
			return obj{"name": w.name(s), "role": "admin", "password": goodPassword}
		})},
	"update-operator": {need: admin, reach: onFleet, manage: true, writes: list("operators", "sessions", "logins", "known_browsers"),
		ask: made("operator", "/operators", person, func(w *world, s side) any { return obj{"role": "operator"} })},
	"end-operator-sessions": {need: admin, reach: onFleet, manage: true, writes: list("sessions", "logins", "known_browsers"),
		ask: signedIn},
	"end-operator-session": {need: admin, reach: onFleet, manage: true, writes: list("sessions", "logins", "known_browsers"),
		ask: signedIn},
	"put-tool-pin": {need: admin, reach: onFleet, writes: list("tool_pins"), ask: just(func(w *world, s side) any {
		return obj{"device": w.live[s], "tool": "self.get_device_status"}
	}), undo: func(w *world, _ side, _ request) { w.must("DELETE", "/tool-pins/self.get_device_status", nil) }},
	"delete-tool-pin": {need: admin, reach: onFleet, writes: list("tool_pins"), ask: func(w *world, p *principal, s side) request {
		w.must("PUT", "/tool-pins", obj{"device": w.live[inside], "tool": "self.audio_speaker.set_volume"})
		return request{args: map[string]string{"tool": "self.audio_speaker.set_volume"}}
	}},
	"release-tool": {need: admin, reach: onFleet, writes: list("tool_quarantines"), ask: just(func(w *world, s side) any {
		digest := strings.Repeat("ab", 32)
		w.exec(`INSERT INTO tool_quarantines (device_id, tool, digest, since) VALUES ($1, 'self.changed', decode($2, 'hex'), now())
			ON CONFLICT DO NOTHING`, w.live[s], digest)
		return obj{"device": w.live[s], "tool": "self.changed", "digest": digest}
	})},
	"release-tool-definition": {need: admin, reach: onFleet, writes: list("tool_definitions", "tool_catalogue"),
		ask: func(w *world, _ *principal, s side) request {
			return request{args: map[string]string{"name": waitingTool}, body: obj{"digest": w.waitingDefinition()}}
		}},
	"release-tool-definitions": {need: admin, reach: onFleet, writes: list("tool_definitions", "tool_catalogue"),
		ask: just(func(w *world, s side) any {
			return obj{"definitions": []any{obj{"tool": waitingTool, "digest": w.waitingDefinition()}}}
		})},
	"put-tool-waits": {need: admin, reach: onFleet, writes: list("tool_catalogue"),
		ask: just(func(*world, side) any { return obj{"waits": "new"} }),
		undo: func(w *world, _ side, _ request) {
			w.exec(`UPDATE tool_catalogue SET waits = 'off', version = version + 1`)
		}},
	"create-policy": {need: admin, reach: onFleet, writes: list("policies", "policy_version"),
		ask: just(func(w *world, s side) any { return rule(w, s) })},
	"update-policy": {need: admin, reach: onFleet, writes: list("policies", "policy_version"),
		ask: made("policy", "/policies", rule, func(w *world, s side) any { return obj{"note": w.name(s)} })},
	"delete-policy": {need: admin, reach: onFleet, writes: list("policies", "policy_version"),
		ask: made("policy", "/policies", rule, nil)},
	"test-policy": {need: viewer, reach: onFleet, models: too, inert: "it says what would happen",
		ask: just(func(w *world, s side) any {
			return obj{"device": w.live[s], "tool": "self.get_device_status", "principal": obj{"kind": "model", "role": "operator"}}
		})},
	"create-enrolment-rule": {need: admin, reach: onFleet, writes: list("enrolment_rules"),
		ask: just(func(w *world, s side) any { return joinRule(w, s) })},
	"update-enrolment-rule": {need: admin, reach: onFleet, writes: list("enrolment_rules"),
		ask: made("enrolment", "/enrolment/rules", joinRule, func(w *world, s side) any { return obj{"name": w.name(s)} })},
	"delete-enrolment-rule": {need: admin, reach: onFleet, writes: list("enrolment_rules"),
		ask: made("enrolment", "/enrolment/rules", joinRule, nil)},
	"load-serials": {need: admin, reach: onFleet, writes: list("serial_keys"),
		ask: just(func(w *world, s side) any { return serialLine(w) })},
	"delete-serial": {need: admin, reach: onFleet, writes: list("serial_keys"), ask: serial},
	"release-serial": {need: admin, reach: onFleet, writes: list("serial_keys"),
		ask: func(w *world, p *principal, s side) request {
			r := serial(w, p, s)
			w.exec(`UPDATE serial_keys SET device_id = $2, bound_at = now() WHERE serial = $1 AND device_id = ''`,
				r.args["serial"], string(w.enrolled(s, "bound")))
			return r
		}},
	"update-alert-thresholds": {need: admin, reach: onFleet, writes: list("settings"), ask: just(func(w *world, s side) any {
		return obj{"settle_ms": 60000 + 1000*w.count()}
	})},
	"update-alert-mail": {need: admin, reach: onFleet, writes: list("settings"), ask: just(func(w *world, s side) any {
		return obj{"recipients": []string{fmt.Sprintf("n%d@example.org", w.count())}}
	})},
	"test-alert-mail": {need: admin, reach: onFleet, inert: "no mail server is set",
		ask: just(func(*world, side) any { return obj{} })},
	"drain-node":   {need: admin, reach: onFleet, inert: "a single process cannot be drained", ask: aNode},
	"cancel-drain": {need: admin, reach: onFleet, inert: "a single process cannot be drained", ask: aNode},
	"acknowledge-alert": {need: asOperator, reach: onFleet, writes: list("alerts", "alert_events"),
		ask: func(w *world, p *principal, s side) request {
			return request{args: w.keep("alert", s, func() thing { return thing{"id": w.alert()} }), body: obj{"note": "seen"}}
		}},
	"reopen-alert": {need: asOperator, reach: onFleet, writes: list("alerts", "alert_events"),
		ask: func(w *world, p *principal, s side) request {
			id := w.alert()
			w.exec(`UPDATE alerts SET state = 'acknowledged', acked_kind = $2, acked_id = $3, acked_name = 'p', acked_role = $4,
				acked_at = now() WHERE id = $1`, id, string(p.kind), p.id, string(p.role))
			return request{args: map[string]string{"id": id}}
		}},
	// Of an alert about no device, which a scope never covers.
	"create-silence": {need: asOperator, reach: onFleet, writes: list("silences"),
		ask: just(func(w *world, s side) any { return silence(w, s) })},
	"end-silence": {need: asOperator, reach: onFleet, writes: list("silences"),
		ask: made("silence", "/alerts/silences", silence, nil)},
	"create-webhook": {need: admin, reach: onFleet, writes: list("webhooks"),
		ask: just(func(w *world, s side) any { return hook(w, s) })},
	"update-webhook": {need: admin, reach: onFleet, writes: list("webhooks"),
		ask: made("webhook", "/webhooks", hook, func(w *world, s side) any { return obj{"name": w.name(s)} })},
	"delete-webhook": {need: admin, reach: onFleet, writes: list("webhooks"),
		ask: made("webhook", "/webhooks", hook, nil)},
	"test-webhook": {need: admin, reach: onFleet, inert: "nobody listens", writes: list("webhooks"),
		ask: made("webhook", "/webhooks", hook, nil)},
	"create-log-stream": {need: admin, reach: onFleet, writes: list("log_streams"),
		ask: just(func(w *world, s side) any { return logStream(w, s) })},
	"update-log-stream": {need: admin, reach: onFleet, writes: list("log_streams"),
		ask: made("log_stream", "/log-streams", logStream, func(w *world, s side) any { return obj{"name": w.name(s)} })},
	"replay-log-stream": {need: admin, reach: onFleet, writes: list("log_streams"),
		ask: made("log_stream", "/log-streams", logStream, func(*world, side) any { return obj{"from": "start"} })},
	"delete-log-stream": {need: admin, reach: onFleet, writes: list("log_streams"),
		ask: made("log_stream", "/log-streams", logStream, nil)},
	"test-log-stream": {need: admin, reach: onFleet, inert: "nobody listens",
		ask: made("log_stream", "/log-streams", logStream, nil)},
	"create-redaction-rule": {need: admin, reach: onFleet, writes: list("redactions", "redaction_version"),
		ask: just(func(w *world, s side) any { return redacted(w, s) })},
	"update-redaction-rule": {need: admin, reach: onFleet, writes: list("redactions", "redaction_version"),
		ask: made("redaction", "/redaction/rules", redacted, func(w *world, s side) any { return obj{"note": w.name(s)} })},
	"delete-redaction-rule": {need: admin, reach: onFleet, writes: list("redactions", "redaction_version"),
		ask: made("redaction", "/redaction/rules", redacted, nil)},
	"digest-value": {need: admin, reach: onFleet, inert: "nothing is kept",
		ask: just(func(w *world, s side) any { return obj{"value": w.name(s)} })},
	"create-upstream": {need: admin, reach: onFleet, writes: list("upstreams", "upstream_version"),
		ask: just(func(w *world, s side) any { return voiceServer(w, s) })},
	"update-upstream": {need: admin, reach: onFleet, writes: list("upstreams", "upstream_version"),
		ask: made("upstream", "/upstreams", voiceServer, func(w *world, s side) any { return obj{"name": w.name(s)} })},
	"delete-upstream": {need: admin, reach: onFleet, writes: list("upstreams", "upstream_version"),
		ask: made("upstream", "/upstreams", voiceServer, nil)},
	"check-upstream": {need: admin, reach: onFleet, inert: "nobody listens", writes: list("upstreams"),
		ask: made("upstream", "/upstreams", voiceServer, nil)},
	"create-endpoint": {need: admin, reach: onFleet, writes: list("endpoints"),
		ask: just(func(w *world, s side) any { return dialIn(w, s) })},
	"update-endpoint": {need: admin, reach: onFleet, writes: list("endpoints"),
		ask: dialInMade(func(w *world, s side) any { return obj{"tools": []string{w.name(s)}} })},
	"delete-endpoint": {need: admin, reach: onFleet, writes: list("endpoints"), ask: dialInMade(nil)},
	"issue-endpoint-token": {need: admin, reach: onFleet, writes: list("endpoints"),
		ask: dialInMade(func(*world, side) any { return obj{"kind": "consumer"} })},
	"revoke-endpoint-token": {need: admin, reach: onFleet, writes: list("endpoints"), ask: dialInMade(nil)},
	"create-plugin": {need: admin, reach: onFleet, writes: list("plugins"),
		ask: just(func(w *world, s side) any { return plugIn(w, s) })},
	"update-plugin": {need: admin, reach: onFleet, writes: list("plugins"),
		ask: plugInMade(func(w *world, s side) any { return obj{"tools": []string{w.name(s)}} })},
	"delete-plugin": {need: admin, reach: onFleet, writes: list("plugins"), ask: plugInMade(nil)},
	"restart-plugin": {need: admin, reach: onFleet, inert: "no table has what a plug-in does",
		ask: plugInMade(nil)},
	"start-key-rotation": {need: admin, reach: onFleet, writes: keyTables,
		ask: func(w *world, p *principal, s side) request {
			w.keep("no rotation", inside, func() thing { w.endRotation(); return thing{} })
			return request{body: obj{"confirm": "rotate"}}
		}, undo: func(w *world, s side, r request) { w.endRotation() }},
	"abort-key-rotation": {need: admin, reach: onFleet, writes: keyTables,
		ask: func(w *world, p *principal, s side) request {
			w.rotating()
			return request{body: obj{"confirm": "abort"}}
		}, undo: func(w *world, s side, r request) { w.endRotation() }},
	"finish-key-rotation": {need: admin, reach: onFleet, writes: keyTables,
		ask: func(w *world, p *principal, s side) request {
			w.rotating()
			left := int(w.must("GET", "/key-rotation", nil).number("left"))
			return request{body: obj{"confirm": fmt.Sprint(left)}}
		}, undo: func(w *world, s side, r request) { w.endRotation() }},
	"restart-key-rotation-devices": {need: admin, reach: onFleet, writes: list("fanouts", "fanout_targets", "calls"),
		inert: "there may be no device that is left", runs: "self.reboot", ask: func(w *world, p *principal, s side) request {
			w.keep("no rotation", inside, func() thing { w.endRotation(); return thing{} })
			return request{}
		}, undo: (*world).rebooted},
}

var (
	campaignTables = list("campaigns", "campaign_images", "waves", "deployments", "deployment_events", "firmware_links", "calls")
	keyTables      = list("signing_keys", "key_rotations")
)

const (
	goodPassword = "violet tractor 91 umbrella"
	asked        = "self.screen.set_theme"         // calls of it wait for an approval
	late         = "self.audio_speaker.set_volume" // calls of it wait for a device that is asleep
)

func list(tables ...string) []string { return tables }

// people returns the row closed to language models.
func people(r row) row {
	r.models = never
	return r
}

func absent(r row) row {
	r.absent = true
	return r
}

func callOf(tool string, arguments obj) func(*world, *principal, side) request {
	return func(w *world, _ *principal, s side) request {
		return request{args: map[string]string{"id": string(w.live[s])}, body: obj{"tool": tool, "arguments": arguments}}
	}
}

func fanOutOf(tool string, arguments obj) func(*world, *principal, side) request {
	return func(w *world, _ *principal, s side) request {
		return request{body: obj{"devices": []fleet.DeviceID{w.live[s]}, "tool": tool, "arguments": arguments, "confirm": 1}}
	}
}

// nightly is a schedule for the device of a side.
func nightly(w *world, s side) any {
	q := "id:" + string(w.live[s])
	if s == inside {
		q += " tag:" + scopeTag
	}
	return obj{"name": w.name(s), "cron": "0 2 * * *", "time_zone": "UTC", "q": q, "tool": "self.get_device_status"}
}

// ownNightly is a schedule that a principal makes for itself.
func ownNightly(w *world, _ side) any { return nightly(w, inside) }

// waitingFanOut makes a fan-out that waits for a sleeping device.
func (w *world) waitingFanOut(secret string, s side) string {
	w.t.Helper()
	id := w.rest(secret, "POST", "/fanouts", obj{"devices": []fleet.DeviceID{w.asleep[s]}, "tool": "self.get_device_status",
		"offline": "wait", "offline_wait_ms": 3_600_000, "confirm": 1}).str("id")
	if id == "" && secret == w.root {
		w.t.Fatal("no fan-out to a device that is asleep")
	}
	id = cmp.Or(id, uuid.NewString())
	w.owner[id] = s
	return id
}

// lateCall makes a call that waits for a sleeping device.
func (w *world) lateCall(s side) thing {
	return w.keep("late call", s, func() thing { return w.makeLateCall(w.root, s) })
}

func (w *world) ownLateCall(p *principal, s side) thing { return w.makeLateCall(p.secret, s) }

func (w *world) makeLateCall(secret string, s side) thing {
	w.t.Helper()
	c := w.rest(secret, "POST", "/devices/"+string(w.asleep[s])+"/calls", obj{"tool": late, "arguments": obj{"volume": 35},
		"offline": "wait", "purpose": w.name(s)})
	if secret == w.root && c.str("state") != "pending_device" {
		w.t.Fatalf("a call to a device that is asleep does not wait: %d %s", c.status, c.text)
	}
	id := cmp.Or(c.str("id"), uuid.NewString())
	w.owner[id] = s
	return thing{"id": id}
}

// fanOutEnds waits for the end of the latest fan-out, or of the one given.
func (w *world) fanOutEnds(_ side, r request) {
	w.t.Helper()
	w.eventually("the fan-out to end", func() bool {
		if id := r.args["id"]; id != "" && !strings.Contains(w.rest(w.root, "GET", "/fanouts/"+id, nil).text, `"finished_at":"`) {
			return false
		}
		var open int
		if err := w.db.QueryRow(w.t.Context(), `SELECT count(*) FROM fanouts f WHERE finished_at IS NULL AND NOT EXISTS
			(SELECT FROM fanout_targets t WHERE t.fanout_id = f.id AND t.device_id = ANY ($1))`, w.neverOn()).Scan(&open); err != nil {
			w.t.Fatal(err)
		}
		return open == 0
	})
}

// rebooted waits until the devices that were restarted are back.
func (w *world) rebooted(_ side, _ request) {
	w.t.Helper()
	w.fanOutEnds(inside, request{})
	for _, id := range w.live {
		if calls := w.sims[id].Calls(); len(calls) > w.ran[id] {
			w.eventually("a restarted device to poll", func() bool {
				var polled time.Time
				if err := w.db.QueryRow(w.t.Context(), `SELECT last_poll FROM devices WHERE id = $1`, string(id)).Scan(&polled); err != nil {
					w.t.Fatal(err)
				}
				return polled.After(calls[len(calls)-1].At)
			})
		}
	}
	w.online(w.live)
}

func (w *world) neverOn() []string {
	return []string{string(w.asleep[inside]), string(w.asleep[outside])}
}

func approvalOf(body any) func(*world, *principal, side) request {
	return func(w *world, _ *principal, s side) request {
		t := w.keep("asked", s, func() thing {
			c := w.must("POST", "/devices/"+string(w.live[s])+"/calls", obj{"tool": asked,
				"arguments": obj{"theme": "dark"}, "purpose": w.name(s)})
			return thing{"id": c.str("approval_id")}
		})
		return request{args: t, body: body}
	}
}

// plan returns a campaign over two devices that never connect.
func (w *world) plan(s side, use string) obj {
	return obj{"name": w.name(s), "release_id": w.release, "supersede": true,
		"devices": []fleet.DeviceID{w.enrolled(s, use+" 1"), w.enrolled(s, use+" 2")},
		"waves":   []obj{{"percent": 50}, {"percent": 100}}}
}

func planOf(w *world, p *principal, s side) request { return request{body: w.plan(s, "plan")} }

func draftOf(body func(*world, side) any) func(*world, *principal, side) request {
	return func(w *world, _ *principal, s side) request {
		t := w.keep("draft", s, func() thing { return thing{"id": w.must("POST", "/campaigns", w.plan(s, "draft")).str("id")} })
		r := request{args: t}
		if body != nil {
			r.body = body(w, s)
		}
		return r
	}
}

// ownDraft returns requests about a draft that the principal made.
func ownDraft(body func(*world, side) any) func(*world, *principal, side) request {
	return func(w *world, p *principal, s side) request {
		id := cmp.Or(w.rest(p.secret, "POST", "/campaigns", w.plan(s, "draft")).str("id"), uuid.NewString())
		w.owner[id] = s
		r := request{args: thing{"id": id}}
		if body != nil {
			r.body = body(w, s)
		}
		return r
	}
}

// awaiting returns a campaign that waits for an approval.
func (w *world) awaiting(s side) thing {
	return w.keep("awaiting campaign", s, func() thing {
		plan := w.plan(s, "awaiting")
		plan["approval_required"] = true
		c := w.must("POST", "/campaigns", plan)
		c = w.must("POST", "/campaigns/"+c.str("id")+"/start", nil)
		return thing{"id": c.str("id"), "digest": c.str("digest")}
	})
}

// running returns a campaign whose first wave is open, with its devices queued.
func (w *world) running(use string, s side, paused bool) thing {
	return w.keep("running "+use, s, func() thing {
		id := w.must("POST", "/campaigns", w.plan(s, use)).str("id")
		w.must("POST", "/campaigns/"+id+"/start", nil)
		w.eventually("the first wave to be open", func() bool {
			var n int
			if err := w.db.QueryRow(w.t.Context(), `SELECT count(*) FROM waves w WHERE campaign_id = $1 AND state = 'running'
				AND NOT EXISTS (SELECT FROM deployments d WHERE d.campaign_id = $1 AND d.wave = w.number AND d.state = 'pending')`,
				id).Scan(&n); err != nil {
				w.t.Fatal(err)
			}
			return n > 0
		})
		if paused {
			w.must("POST", "/campaigns/"+id+"/pause", obj{"reason": "lunch"})
		}
		w.quiet()
		return thing{"id": id}
	})
}

func runningOf(use string, paused bool) func(*world, *principal, side) request {
	return func(w *world, _ *principal, s side) request { return request{args: w.running(use, s, paused)} }
}

func (w *world) endCampaign(_ side, r request) {
	if w.rest(w.root, "POST", "/campaigns/"+r.args["id"]+"/abort", obj{}).status == 409 {
		w.rest(w.root, "DELETE", "/campaigns/"+r.args["id"], nil)
	}
}

func (w *world) count() int {
	w.notes++
	return w.notes
}

func (w *world) newVersion() string { return fmt.Sprintf("4.0.%d", w.count()) }

func (w *world) appImage(version string) []byte {
	data, err := sim.AppImage(liveBoard, version, 20_000)
	if err != nil {
		w.t.Fatal(err)
	}
	return data
}

func imageOf(use string, body func(w *world) any) func(*world, *principal, side) request {
	return func(w *world, _ *principal, s side) request {
		t := w.keep("image "+use, s, func() thing {
			data := w.appImage(fmt.Sprintf("3.0.%d", w.count()))
			w.must("POST", "/images?board="+liveBoard, data)
			sum := sha256.Sum256(data)
			return thing{"sha256": hex.EncodeToString(sum[:])}
		})
		r := request{args: t}
		if body != nil {
			r.body = body(w)
		}
		if use == "sign" {
			r.body = obj{"manifest": "{}", "signature": ""}
		}
		return r
	}
}

func draftRelease(w *world, _ side) any {
	return obj{"images": []string{w.image}, "version": w.newVersion(), "draft": true}
}

func release(w *world, _ side) any {
	image := w.must("POST", "/images?board="+liveBoard, w.appImage(fmt.Sprintf("3.1.%d", w.count()))).str("sha256")
	return obj{"images": []string{image}, "version": w.newVersion()}
}

func savedFilter(w *world, s side) any { return obj{"name": w.name(s), "q": "board:x"} }

func person(w *world, s side) any {
	return obj{"name": w.name(s), "role": "viewer", "password": goodPassword}
}

func rule(w *world, s side) any {
	return obj{"name": w.name(s), "enabled": false, "tools": []string{"self.none"}, "decision": "deny"}
}

func joinRule(w *world, s side) any {
	return obj{"name": w.name(s), "enabled": false, "action": "accept", "boards": []string{"none-such"}}
}

func serialLine(w *world) string {
	return fmt.Sprintf("SN-%d,%s\n", w.count(), strings.Repeat("ab", 32))
}

// signedIn returns a request about an operator who is signed in, and the session.
func signedIn(w *world, _ *principal, s side) request {
	return request{args: w.keep("signed in", s, func() thing {
		p := &principal{kind: fleet.KindOperator, role: viewer, tools: allTools}
		w.signIn(p)
		session, _ := w.must("GET", "/operators/"+p.id+"/sessions", nil).items()[0]["id"].(string)
		return thing{"id": p.id, "session": session}
	})}
}

func serial(w *world, _ *principal, s side) request {
	t := w.keep("serial", s, func() thing {
		line := serialLine(w)
		w.must("POST", "/serials", line)
		name, _, _ := strings.Cut(line, ",")
		return thing{"serial": name}
	})
	return request{args: t}
}

func logStream(w *world, s side) any {
	return obj{"name": w.name(s), "kind": "webhook", "url": "http://127.0.0.1:9/", "enabled": false}
}

func redacted(w *world, s side) any {
	return obj{"tool": w.name(s), "path": "$.value"}
}

func silence(w *world, _ side) any {
	return obj{"alert_id": w.alert(), "duration_ms": 3_600_000, "reason": "maintenance"}
}

func hook(w *world, s side) any {
	return obj{"name": w.name(s), "url": "http://127.0.0.1:9/" + w.name(s), "events": []string{"alert.ended"}, "enabled": false}
}

func voiceServer(w *world, s side) any {
	return obj{"name": w.name(s), "kind": "websocket", "url": "ws://127.0.0.1:9/", "devices": "board:none-such", "enabled": false}
}

// dialIn is an endpoint that no program connects to.
func dialIn(w *world, _ side) any {
	return obj{"name": fmt.Sprintf("dial-in-%d", w.count())}
}

func dialInMade(body func(*world, side) any) func(*world, *principal, side) request {
	return func(w *world, _ *principal, s side) request {
		r := request{args: w.keep("endpoint", s, func() thing {
			return thing{"endpoint": w.must("POST", "/endpoints", dialIn(w, s)).str("name")}
		})}
		if body != nil {
			r.body = body(w, s)
		}
		return r
	}
}

// plugIn is a plug-in that does not run.
func plugIn(w *world, _ side) any {
	return obj{"name": fmt.Sprintf("plug-in-%d", w.count()), "url": "http://127.0.0.1:9/mcp", "disabled": true}
}

func plugInMade(body func(*world, side) any) func(*world, *principal, side) request {
	return func(w *world, _ *principal, s side) request {
		r := request{args: w.keep("plug-in", s, func() thing {
			return thing{"name": w.must("POST", "/plugins", plugIn(w, s)).str("name")}
		})}
		if body != nil {
			r.body = body(w, s)
		}
		return r
	}
}

func (w *world) rotating() {
	w.keep("rotation", inside, func() thing {
		w.endRotation()
		w.must("POST", "/key-rotation/start", obj{"confirm": "rotate"})
		return thing{}
	})
}

// endRotation finishes the rotation, if there is one.
func (w *world) endRotation() {
	w.t.Helper()
	for _, key := range []string{"inside rotation", "inside no rotation"} {
		delete(w.kept, key)
	}
	for range 10 {
		r := w.must("GET", "/key-rotation", nil)
		if s := r.str("state"); s != "running" && s != "aborting" {
			return
		}
		w.rest(w.root, "POST", "/key-rotation/finish", obj{"confirm": fmt.Sprint(int(r.number("left")))})
	}
	w.t.Fatal("the rotation of keys does not end")
}

func (w *world) coreDump(s side) string {
	id := uuid.Must(uuid.NewV7()).String()
	w.exec(`INSERT INTO core_dumps (id, device_id, call_id, blob, size, summary, elf_sha256, version, build_from, reset_reason, boots, created_at)
		VALUES ($1, $2, $1, $3, 1, '', '', '', '', '', 0, now())`, id, string(w.live[s]), id)
	return id
}

func (w *world) alert() string {
	id := uuid.Must(uuid.NewV7()).String()
	w.exec(`INSERT INTO alerts (id, kind, subject, state, severity, devices, params, query, began_at)
		VALUES ($1, 'disk_low', $2, 'open', 'warning', 0, '{}', '', now())`, id, w.name(inside))
	return id
}

// aNode names a node of the cluster.
func aNode(*world, *principal, side) request {
	return request{args: map[string]string{"node": "edge-1"}}
}
