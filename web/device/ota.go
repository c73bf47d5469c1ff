package device

import (
	"encoding/json"
	"errors"
	"net/http"

	"fleetd/fleet"
)

// poll serves the boot poll. A known device gets status 200 whatever its body contains: any other
// status delays its start by minutes and, after an upgrade, rolls the upgrade back (protocol 1.5).
func (h *Handler) poll(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet && r.Header.Get("Device-Id") == "" {
		send(w, http.StatusOK, "text/plain; charset=utf-8", []byte(browserHelp))
		return
	}
	id, err := fleet.ParseBoardID(r.Header.Get("Device-Id"))
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
	body, err := h.o.BootPolls.Answer(r.Context(), p)
	if err != nil {
		h.refusePoll(w, id, err)
		return
	}
	send(w, http.StatusOK, "application/json", body)
}

const browserHelp = `This is the OTA address of a fleetd server, for devices.

Enter the address of this page in the Wi-Fi setup page of a xiaozhi-esp32 device
(advanced settings, OTA address). The device then joins the fleet when it starts.
`

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
