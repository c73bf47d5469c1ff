package ui

import (
	"strconv"
	"strings"

	"fleetd/fleet/enrolment"
)

// A MQTT5Form creates a device of MCP over MQTT 5: POST [PathMQTT5].
type MQTT5Form struct {
	ID, Name string
	Problem  string // why it was refused, in the page's language
	Open     bool   // the address asks for the form
}

// A CredentialsPage shows the credentials of a device of MCP over MQTT 5, once: it is the answer to
// the form that made them, so they are in no address and are not stored.
type CredentialsPage struct {
	Credentials enrolment.MQTT5Credentials
	Name        string // of the device
	Broker      string // host:port
	Replaced    bool   // the device had others before
}

// secure reports whether the broker's address means TLS.
func (v CredentialsPage) secure() bool { return strings.HasSuffix(v.Broker, ":8883") }

// uri returns the address of the broker as client libraries write it.
func (v CredentialsPage) uri() string {
	if v.secure() {
		return "mqtts://" + v.Broker
	}
	return "mqtt://" + v.Broker
}

// sdkLines are what a program for the ESP-IDF SDK contains. The name of the server is an example.
func (v CredentialsPage) sdkLines() string {
	c := v.Credentials
	args := []string{"demo/" + c.ClientID, v.Name, v.uri(), c.ClientID, c.Username, c.Password}
	if v.Name == "" {
		args[1] = c.ClientID
	}
	for i, a := range args {
		args[i] = cString(a)
	}
	return "mcp_server_t *server = mcp_server_init(\n    " + strings.Join(args, ",\n    ") + ",\n    NULL);"
}

// cString writes text as a literal of C.
func cString(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, `?`, `\?`).Replace(s) + `"`
}

// testLine is a command that connects with the credentials and waits for messages.
func (v CredentialsPage) testLine() string {
	host, port := v.Broker, ""
	if i := strings.LastIndexByte(v.Broker, ':'); i >= 0 {
		host, port = strings.Trim(v.Broker[:i], "[]"), v.Broker[i+1:]
	}
	c, tls := v.Credentials, ""
	if v.secure() {
		tls = " --tls-use-os-certs"
	}
	return "mosquitto_sub -V mqttv5 -h " + host + " -p " + port + tls + " -i " + c.ClientID + " -u " + c.Username + " -P '" + c.Password +
		"' -t '$mcp-server/" + c.ClientID + "/#' -d"
}

func (v CredentialsPage) title() string { return deviceTitle(v.Credentials.Device, v.Name) }

func (v CredentialsPage) said() string {
	if v.Replaced {
		return "mqtt5.replaced"
	}
	return "mqtt5.created"
}

func credentialsVersion(s enrolment.MQTT5State) string { return strconv.Itoa(int(s.Version)) }
