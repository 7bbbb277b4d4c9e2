-- now
SELECT {now}

-- place
SELECT format('postgresql:%s:%s/%s', coalesce(host(inet_server_addr()), 'local'), coalesce(inet_server_port(), 0),
              current_database())
