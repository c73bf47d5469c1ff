package api

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"fleetd/fleet"
	"fleetd/web/access"
)

func (a *api) registerFirmware() {
	register(a, operation{id: "list-firmware", reach: access.Device, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/devices/{id}/firmware",
		role: fleet.RoleViewer, noun: "device",
		summary: "List the builds that a device has run, newest first"}, a.listFirmware)
	register(a, operation{id: "get-facts", reach: access.Device, models: fleet.ModelsMay,
		method: http.MethodGet, path: "/devices/{id}/facts", role: fleet.RoleViewer,
		noun:    "device",
		summary: "Show what a device reported at its latest boot"}, a.getFacts)
}

type firmwareView struct {
	Version    string    `json:"version"`
	Slot       string    `json:"slot"`
	ELFSHA256  string    `json:"elf_sha256"`
	IDFVersion string    `json:"idf_version"`
	FirstSeen  time.Time `json:"first_seen"`
	LastSeen   time.Time `json:"last_seen"`
}

func (a *api) listFirmware(ctx context.Context, _ fleet.Principal, in *DevicePath) (*answer[list[firmwareView]],
	error) {
	d, err := a.find(ctx, *in)
	if err != nil {
		return nil, err
	}
	history, err := a.Devices.FirmwareHistory(ctx, d.ID)
	if err != nil {
		return nil, err
	}
	return listOf(history, func(f fleet.FirmwareRecord) firmwareView {
		return firmwareView{Version: f.Version, Slot: f.Slot, ELFSHA256: f.ELFSHA256, IDFVersion: f.IDFVersion,
			FirstSeen: utc(f.FirstSeen), LastSeen: utc(f.LastSeen)}
	}), nil
}

type factsView struct {
	DeviceID fleet.DeviceID  `json:"device_id"`
	PolledAt time.Time       `json:"polled_at"`
	Broken   bool            `json:"broken" doc:"The device's JSON could not be parsed completely"`
	Warnings []factsWarning  `json:"warnings" nullable:"false" doc:"Problem with the boot poll"`
	Facts    json.RawMessage `json:"facts" doc:"The device's own JSON, unchanged; of malformed JSON the readable part, or null"`
}

// A factsWarning is a code with its parameters.
type factsWarning struct {
	Code   string             `json:"code" enum:"poll_salvaged,poll_unreadable" doc:"poll_salvaged: only the part before the error was used. poll_unreadable: only the headers were used"`
	Params factsWarningParams `json:"params"`
}

type factsWarningParams struct {
	Fields []fleet.PollField `json:"fields" nullable:"false" doc:"The fields that were read: chip, version, build, partitions, slot, board"`
}

func factsWarnings(f fleet.Facts) []factsWarning {
	if f.Problem() == "" {
		return []factsWarning{}
	}
	return []factsWarning{{f.Problem(), factsWarningParams{append([]fleet.PollField{}, f.Salvaged...)}}}
}

func (a *api) getFacts(ctx context.Context, _ fleet.Principal, in *DevicePath) (*answer[factsView], error) {
	d, err := a.find(ctx, *in)
	if err != nil {
		return nil, err
	}
	f, err := a.Devices.Facts(ctx, d.ID)
	if errors.Is(err, fleet.ErrNotFound) {
		return nil, fleet.Refuse(fleet.ErrNotFound, "no_facts", "device", d.ID)
	}
	if err != nil {
		return nil, err
	}
	return answerWith(factsView{DeviceID: d.ID, PolledAt: utc(f.PolledAt), Broken: f.Broken, Warnings: factsWarnings(f),
		Facts: rawOrNull(f.Body)}), nil
}
