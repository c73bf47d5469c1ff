package device

import (
	"encoding/json"
	"errors"
	"net/http"

	"fleetd/fleet"
	"fleetd/fleet/enrolment"
)

// poll answers the boot poll. A known device is answered 200 whatever its body
// looks like: anything else delays its start by minutes and, after an upgrade,
// rolls it back (protocol 1.5).
func (h *Handler) poll(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet && r.Header.Get("Device-Id") == "" {
		send(w, http.StatusOK, "text/plain; charset=utf-8", []byte(browserHelp))
		return
	}
	id, err := fleet.ParseDeviceID(r.Header.Get("Device-Id"))
	if err != nil {
		sendError(w, http.StatusBadRequest,
			"Device-Id header missing or invalid; want a MAC address such as a0:85:e3:11:22:33")
		return
	}
	addr := remoteAddr(r)
	if !h.o.Enrolments.Known(id) && h.limited(w, r, addr) {
		return
	}
	p := readPoll(r, id, addr, h.o.Now().UTC())
	h.stats.count(&p)
	h.doubt(r, &p)
	answer, err := h.o.Enrolments.Poll(p)
	if err != nil {
		h.refusePoll(w, id, err)
		return
	}
	if answer.Session != nil {
		h.o.Presences.Polled(id, p.At, p.ELFSHA256) // without a session, anyone may have sent the poll
		answer.Offer = h.offer(r.Context(), p, answer.FirstBoot)
	}
	body, err := h.o.Answers.Body(answer, p.At)
	if err != nil {
		h.o.Log.Error("a part of the answer withheld: it would harm the device", "device", id, "err", err)
	}
	send(w, http.StatusOK, "application/json", body)
}

const browserHelp = `This is the OTA address of a fleetd server, for devices.

Enter the address of this page in the Wi-Fi setup page of a xiaozhi-esp32 device
(advanced settings, OTA address). The device then joins the fleet when it starts.
`

// doubt logs polls whose body names another device than their header. The
// header counts: it is what the device uses everywhere else.
func (h *Handler) doubt(r *http.Request, p *enrolment.BootPoll) {
	if p.BodyMAC == "" {
		return
	}
	if other, err := fleet.ParseDeviceID(p.BodyMAC); err == nil && other == p.Device {
		return
	}
	if !h.doubts.OnLimit(discard{}, r, "suspicious") {
		h.o.Log.Warn("suspicious boot poll: the body names another device", "device", p.Device, "body_mac", p.BodyMAC,
			"remote", p.RemoteAddr)
	}
}

// discard is an [http.ResponseWriter] that drops the answer of a limiter.
type discard struct{}

func (discard) Header() http.Header         { return http.Header{} }
func (discard) Write(b []byte) (int, error) { return len(b), nil }
func (discard) WriteHeader(int)             {}

func (h *Handler) refusePoll(w http.ResponseWriter, id fleet.DeviceID, err error) {
	if !errors.Is(err, fleet.ErrUnavailable) {
		h.o.Log.Error("boot poll not answered", "device", id, "err", err)
		sendError(w, http.StatusInternalServerError, "internal error")
		return
	}
	w.Header().Set("Retry-After", "60")
	sendError(w, http.StatusServiceUnavailable, err.Error())
}

func sendError(w http.ResponseWriter, status int, message string) {
	body, _ := json.Marshal(map[string]string{"error": message}) // strings only
	send(w, status, "application/json", body)
}
