-- +goose Up

-- How a device is to connect, and how the answer to its latest boot poll has it
-- connect: what is chosen holds from the device's next start on. One that was
-- given a WebSocket is connected in conversations only.
ALTER TABLE devices
    ADD COLUMN transport_choice text NOT NULL DEFAULT 'mqtt' CHECK (transport_choice IN ('mqtt', 'ws')),
    ADD COLUMN transport_given text NOT NULL DEFAULT '' CHECK (transport_given IN ('', 'mqtt', 'ws'));

-- What is chosen for the devices that a rule lets in; '' leaves it at MQTT.
ALTER TABLE enrolment_rules
    ADD COLUMN transport text NOT NULL DEFAULT '' CHECK (transport IN ('', 'mqtt', 'ws'));
